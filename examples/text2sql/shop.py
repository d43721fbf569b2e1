"""A small shop in SQLite, made from a seed: customers, products, orders, order_items, reviews.

python -m examples.text2sql.shop shop.db
"""

import argparse
import sqlite3
from datetime import date, timedelta
from pathlib import Path
from random import Random

SEED = 7
CUSTOMERS = 120
ORDERS = 420

SCHEMA = """\
CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    city TEXT NOT NULL,
    country TEXT NOT NULL,
    joined_on TEXT NOT NULL      -- YYYY-MM-DD
);
CREATE TABLE products (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    category TEXT NOT NULL,
    price_cents INTEGER NOT NULL
);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    ordered_on TEXT NOT NULL,    -- YYYY-MM-DD
    status TEXT NOT NULL         -- placed, shipped, delivered or returned
);
CREATE TABLE order_items (
    order_id INTEGER NOT NULL REFERENCES orders (id),
    product_id INTEGER NOT NULL REFERENCES products (id),
    quantity INTEGER NOT NULL,
    PRIMARY KEY (order_id, product_id)
);
CREATE TABLE reviews (
    id INTEGER PRIMARY KEY,
    product_id INTEGER NOT NULL REFERENCES products (id),
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    stars INTEGER NOT NULL,      -- 1 to 5
    written_on TEXT NOT NULL     -- YYYY-MM-DD
);
"""

CITIES = (
    ("Turin", "Italy"),
    ("Rome", "Italy"),
    ("Lyon", "France"),
    ("Paris", "France"),
    ("Berlin", "Germany"),
    ("Hamburg", "Germany"),
    ("Madrid", "Spain"),
    ("Porto", "Portugal"),
)
FIRST_NAMES = ("Ada", "Bruno", "Carla", "Diego", "Elena", "Felix", "Greta", "Hugo", "Ines", "Jonas")
LAST_NAMES = ("Rossi", "Dubois", "Keller", "Garcia", "Silva", "Moreau", "Weber", "Costa")
PRODUCTS = {
    "books": ("Atlas", "Cookbook", "Dictionary", "Novel", "Poems"),
    "garden": ("Hose", "Rake", "Seeds", "Shovel", "Wheelbarrow"),
    "kitchen": ("Kettle", "Knife", "Pan", "Scale", "Toaster"),
    "music": ("Drum", "Flute", "Guitar", "Ukulele", "Violin"),
    "office": ("Chair", "Desk", "Lamp", "Notebook", "Stapler"),
}
STATUSES = ("placed", "shipped", "delivered", "returned")
FIRST_DAY = date(2024, 1, 1)
DAYS = 730


def make(path: Path, seed: int = SEED) -> None:
    """Write the database to a file that is not there yet."""
    if path.exists():
        raise FileExistsError(path)
    rng = Random(seed)
    connection = sqlite3.connect(path)
    try:
        with connection:
            connection.executescript(SCHEMA)
            _fill(connection, rng)
    finally:
        connection.close()


def _fill(connection: sqlite3.Connection, rng: Random) -> None:
    customers = [
        (
            number,
            f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}",
            *rng.choice(CITIES),
            _day(rng),
        )
        for number in range(1, CUSTOMERS + 1)
    ]
    names = [(name, category) for category, names in PRODUCTS.items() for name in names]
    products = [
        (number, name, category, rng.randint(300, 60_000))
        for number, (name, category) in enumerate(names, start=1)
    ]
    orders = [
        (
            number,
            rng.randint(1, CUSTOMERS),
            _day(rng),
            rng.choices(STATUSES, (1, 2, 8, 1))[0],
        )
        for number in range(1, ORDERS + 1)
    ]
    items = [
        (order, product, rng.choices((1, 2, 3, 5), (12, 5, 2, 1))[0])
        for order in range(1, ORDERS + 1)
        for product in rng.sample(range(1, len(products) + 1), rng.randint(1, 4))
    ]
    reviews = [
        (
            number,
            rng.randint(1, len(products)),
            rng.randint(1, CUSTOMERS),
            rng.choices((1, 2, 3, 4, 5), (1, 1, 3, 6, 5))[0],
            _day(rng),
        )
        for number in range(1, 261)
    ]
    for table, rows in (
        ("customers", customers),
        ("products", products),
        ("orders", orders),
        ("order_items", items),
        ("reviews", reviews),
    ):
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def _day(rng: Random) -> str:
    return (FIRST_DAY + timedelta(days=rng.randrange(DAYS))).isoformat()


def main() -> None:
    """Make the database at the path that the command line names."""
    parser = argparse.ArgumentParser(description="Make the example's database.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=SEED, help="(default: %(default)s)")
    arguments = parser.parse_args()
    make(arguments.path, arguments.seed)


if __name__ == "__main__":
    main()
