// A Go client of PostgreSQL, for .ci/nightly: go-client PORT SSLMODE.
package main

import (
	"database/sql"
	"fmt"
	"log"
	"os"
	"strings"

	_ "github.com/lib/pq"
)

func main() {
	where := fmt.Sprintf("host=127.0.0.1 port=%s user=postgres dbname=postgres sslmode=%s", os.Args[1], os.Args[2])
	database, err := sql.Open("postgres", where)
	check(err)
	defer database.Close()
	// A temporary table belongs to one connection.
	database.SetMaxOpenConns(1)
	_, err = database.Exec("create temp table numbers (n integer, long text)")
	check(err)
	for number := 1; number <= 1000; number++ {
		_, err = database.Exec("insert into numbers values ($1, $2)", number, strings.Repeat("x", number*37))
		check(err)
	}
	rows, err := database.Query("select n, long from numbers order by n")
	check(err)
	count, sum := 0, 0
	for rows.Next() {
		var number int
		var text string
		check(rows.Scan(&number, &text))
		if len(text) != number*37 {
			log.Fatalf("row %d", number)
		}
		count++
		sum += number
	}
	check(rows.Err())
	fmt.Printf("%d rows, sum %d\n", count, sum)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
