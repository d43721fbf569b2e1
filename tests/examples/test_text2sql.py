"""The text-to-SQL example: its shop, its leash, its reading of answers."""

import sqlite3
from pathlib import Path

import pytest

from examples.text2sql import shop
from examples.text2sql.choices import Candidate, keywords, passed, tables, unit_tests, vote
from examples.text2sql.database import MAX_ROWS, Database, Ran, sql_in
from examples.text2sql.questions import QUESTIONS


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.db"
    shop.make(path)
    return path


@pytest.fixture
def database(path: Path) -> Database:
    return Database(path)


def test_the_same_seed_makes_the_same_shop(path: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again.db", tmp_path / "other.db"
    shop.make(again)
    shop.make(other, seed=8)

    def dump(file: Path) -> list[str]:
        connection = sqlite3.connect(file)
        try:
            return list(connection.iterdump())
        finally:
            connection.close()

    assert dump(again) == dump(path)
    assert dump(other) != dump(path)


def test_every_question_has_an_answer_that_says_something(database: Database) -> None:
    for question in QUESTIONS:
        ran = database.run(question.gold_sql)
        assert ran.error is None, question.text
        assert 1 <= len(ran.rows) < MAX_ROWS, question.text


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM orders",
        "ATTACH 'other.db' AS other",
        "SELECT 1; SELECT 2",
        "PRAGMA writable_schema = 1",
        "SELECT * FROM no_such_table",
        "not even SQL",
    ],
)
def test_what_is_not_one_reading_query_is_an_error(database: Database, sql: str) -> None:
    ran = database.run(sql)

    assert ran.error
    assert ran.as_answer is None


def test_a_query_without_an_end_is_given_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.text2sql.database.MAX_SECONDS", 0.0)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT count(*) FROM n"

    assert database.run(endless).error == "interrupted"


def test_values_are_found_by_a_part_of_them(database: Database) -> None:
    assert database.find(["turin", "guitar"]) == [
        "customers.city = 'Turin'",
        "products.name = 'Guitar'",
    ]
    assert database.find(["o' OR 1=1 --"]) == []


@pytest.mark.parametrize(
    ("answer", "sql"),
    [
        ("Thus:\n```sql\nSELECT 1;\n```\nDone.", "SELECT 1"),
        ("```\nWITH a AS (SELECT 1) SELECT * FROM a\n```", "WITH a AS (SELECT 1) SELECT * FROM a"),
        ("select 2;", "select 2"),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_queries_are_read_out_of_answers(answer: str, sql: str | None) -> None:
    assert sql_in(answer) == sql


def test_keywords_are_those_of_the_question_whatever_the_model_says() -> None:
    question = "How many customers live in Turin?"

    assert keywords("customers, Turin, Paris", question) == ["customers", "Turin"]
    assert keywords("plan per not which", question) == ["customers", "live", "Turin"]


def test_tables_that_nobody_named_are_all_of_them() -> None:
    assert tables("orders, customers!", ["customers", "orders", "products"]) == [
        "customers",
        "orders",
    ]
    assert tables("nonsense", ["customers", "orders"]) == ["customers", "orders"]


def test_there_is_a_test_at_least_and_not_too_many() -> None:
    assert unit_tests("- one\n\n- two\n- three", 2) == ["one", "two"]
    assert len(unit_tests("", 2)) == 1


def test_verdicts_are_read_and_silence_fails() -> None:
    assert passed("1: pass\n2 - FAIL\n4: pass", 3) == [True, False, False]


def test_votes_go_by_running_then_points_then_agreement_then_order() -> None:
    broken = Candidate("a", "x", Ran(error="no such column"))
    one, same = (Candidate(o, "SELECT 1", Ran(rows=((1,),))) for o in "bc")
    two = Candidate("d", "SELECT 2", Ran(rows=((2,),)))

    assert vote([broken, two], [3, 0]) is two
    assert vote([one, two], [1, 2]) is two
    assert vote([two, one, same], [1, 1, 1]) is one
    assert vote([one, two], [0, 0]) is one
