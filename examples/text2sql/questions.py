"""Questions about the shop, with a query that answers each: the mark to be hit."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and a query whose rows are right."""

    text: str
    gold_sql: str


QUESTIONS = (
    Question(
        "How many customers live in Turin?",
        "SELECT count(*) FROM customers WHERE city = 'Turin'",
    ),
    Question(
        "Which product category earned the most, in cents, in delivered orders?",
        "SELECT p.category FROM products p JOIN order_items i ON i.product_id = p.id"
        " JOIN orders o ON o.id = i.order_id WHERE o.status = 'delivered'"
        " GROUP BY p.category ORDER BY sum(i.quantity * p.price_cents) DESC LIMIT 1",
    ),
    Question(
        "What share of the orders was returned? Answer as a number between 0 and 1.",
        "SELECT avg(status = 'returned') FROM orders",
    ),
    Question(
        "List the names of the three products with the most reviews of five stars.",
        "SELECT p.name FROM products p JOIN reviews r ON r.product_id = p.id WHERE r.stars = 5"
        " GROUP BY p.id ORDER BY count(*) DESC, p.name LIMIT 3",
    ),
    Question(
        "How many orders were placed by customers from Germany in 2025?",
        "SELECT count(*) FROM orders o JOIN customers c ON c.id = o.customer_id"
        " WHERE c.country = 'Germany' AND o.ordered_on LIKE '2025-%'",
    ),
    Question(
        "Which customers have never ordered anything? Give their ids.",
        "SELECT id FROM customers WHERE id NOT IN (SELECT customer_id FROM orders)",
    ),
    Question(
        "What is the average number of different products in an order?",
        "SELECT avg(n) FROM (SELECT count(*) AS n FROM order_items GROUP BY order_id)",
    ),
    Question(
        "In which month of 2024 were the most orders placed? Answer as YYYY-MM.",
        "SELECT substr(ordered_on, 1, 7) AS month FROM orders WHERE month LIKE '2024-%'"
        " GROUP BY month ORDER BY count(*) DESC LIMIT 1",
    ),
)
