"""What each stage asks of the model. The fixed part stands first, so that engines can reuse it."""

KEYWORDS = """\
Name the words and phrases of a question that hint at tables, columns or values of a database.
Answer with a comma-separated list only.

Question: {question}"""

LINK_SCHEMA = """\
Choose the tables that are needed to answer a question. Answer with a comma-separated list of
table names only.

{schema}

Values in the database that resemble the question's words:
{values}

Question: {question}"""

CANDIDATES = {
    "divide and conquer": """\
You write SQLite queries. Divide the question into smaller ones, answer each with a query, then put
them together. End with one query in a ```sql block.

{schema}

Values that may matter:
{values}

Question: {question}""",
    "query plan": """\
You write SQLite queries. Think as the database does: which tables to scan, how to join them, what
to filter, group and sort by. End with one query in a ```sql block.

{schema}

Values that may matter:
{values}

Question: {question}""",
}

REVISE = """\
A SQLite query does not do what it should. Mend it. End with one query in a ```sql block.

{schema}

Question: {question}
Query: {sql}
Result: {result}"""

UNIT_TESTS = """\
Candidates for the same question differ. Write {count} short tests, one a line, that a right query's
result passes and a wrong one's fails. Speak of the result only. No numbering.

Question: {question}

{candidates}"""

EVALUATE = """\
Say of every candidate whether it passes the test. Answer with one line a candidate, such as
"1: pass" or "2: fail".

Question: {question}
Test: {test}

{candidates}"""

ANSWER = """\
Answer the question in one sentence from the query's result.

Question: {question}
Query: {sql}
Result:
{result}"""
