"""A Python client of PostgreSQL, for .ci/nightly: client.py PORT SSLMODE."""

import sys

import psycopg2

connection = psycopg2.connect(host="127.0.0.1", port=sys.argv[1], user="postgres", dbname="postgres", sslmode=sys.argv[2])
with connection.cursor() as cursor:
    cursor.execute("create temp table numbers (n integer, long text)")
    for number in range(1, 1001):
        cursor.execute("insert into numbers values (%s, %s)", (number, "x" * (number * 37)))
    cursor.execute("select n, long from numbers order by n")
    rows = cursor.fetchall()
    assert all(len(text) == number * 37 for number, text in rows)
    print(f"{len(rows)} rows, sum {sum(number for number, _ in rows)}")
connection.close()
