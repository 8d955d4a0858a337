// Holds histories of simulated worlds against porcupine, a linearizability checker that nobody here wrote.
//
//	go run . [-least N] FILE…
//
// Each file is a history as `cargo xtask sim --history` writes it. A history in which a server left less than it
// had acknowledged or shown is passed over: no order explains it, and need not. A wrong one is named, and the
// exit status is 1; so it is when fewer than N (1) were judged.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// A line of a history.
type line struct {
	Process  string          `json:"process"`
	Kind     string          `json:"kind"`
	Key      *string         `json:"key"`
	Value    *int64          `json:"value"`
	Invoked  int64           `json:"invoked"`
	Returned *int64          `json:"returned"`
	Until    *int64          `json:"until"`
	Result   json.RawMessage `json:"result"`
}

// What was asked about a row or a table's name.
type call struct {
	kind  string
	key   string
	value int64
}

// What was answered.
type answer struct {
	pending bool
	done    bool
	read    int64
}

// A row or a name: absent, or with a value.
type register struct {
	there bool
	value int64
}

// What a call makes of a register, and what it answers.
func apply(at register, c call) (register, answer) {
	written := register{there: true, value: c.value}
	switch c.kind {
	case "insert":
		if at.there {
			return at, answer{}
		}
		return written, answer{done: true}
	case "update":
		if !at.there {
			return at, answer{}
		}
		return written, answer{done: true}
	case "upsert":
		return written, answer{done: at.there}
	case "upsert-among":
		// One of several rows: whether it replaced one is not told.
		return written, answer{done: true}
	case "delete", "drop":
		return register{}, answer{done: at.there}
	case "create":
		return register{there: true}, answer{done: !at.there}
	case "describe":
		return at, answer{done: at.there}
	default: // read
		return at, answer{done: at.there, read: at.value}
	}
}

var model = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		var parts [][]porcupine.Operation
		place := map[string]int{}
		for _, operation := range history {
			key := operation.Input.(call).key
			at, known := place[key]
			if !known {
				at = len(parts)
				place[key] = at
				parts = append(parts, nil)
			}
			parts[at] = append(parts[at], operation)
		}
		return parts
	},
	Init: func() []interface{} { return []interface{}{register{}} },
	Step: func(state, input, output interface{}) []interface{} {
		next, told := apply(state.(register), input.(call))
		heard := output.(answer)
		if heard.pending {
			return []interface{}{state, next}
		}
		if heard != told {
			return nil
		}
		return []interface{}{next}
	},
}).ToModel()

// Reads a history. None is given where some server left less than all.
func read(path string) ([]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var operations []porcupine.Operation
	clients := map[string]int{}
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		switch l.Kind {
		case "checkpoint":
			continue
		case "end":
			if string(l.Result) != `"all"` {
				return nil, nil
			}
			continue
		case "insert", "update", "upsert", "upsert-among", "delete", "read", "read, if still", "create", "drop", "describe":
		default:
			return nil, fmt.Errorf("%s:%d: there is no kind %q", path, number, l.Kind)
		}
		if l.Key == nil {
			return nil, fmt.Errorf("%s:%d: a call without a key", path, number)
		}
		asked := call{kind: l.Kind, key: *l.Key}
		if l.Value != nil {
			asked.value = *l.Value
		}
		heard := answer{pending: l.Returned == nil}
		ended := int64(math.MaxInt64)
		if heard.pending {
			if strings.HasPrefix(l.Kind, "read") || l.Kind == "describe" {
				continue
			}
			if l.Until != nil {
				ended = *l.Until
			}
		} else {
			var result struct {
				Done bool   `json:"done"`
				Read *int64 `json:"read"`
			}
			if err := json.Unmarshal(l.Result, &result); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, number, err)
			}
			heard.done, ended = result.Done, *l.Returned
			if result.Read != nil {
				heard.read = *result.Read
			}
		}
		client, known := clients[l.Process]
		if !known {
			client = len(clients)
			clients[l.Process] = client
		}
		operations = append(operations, porcupine.Operation{
			ClientId: client, Input: asked, Call: l.Invoked, Output: heard, Return: ended,
		})
	}
	told := []porcupine.Operation{}
	for _, operation := range operations {
		if !mayHaveMissed(operation, operations) {
			told = append(told, operation)
		}
	}
	return told, lines.Err()
}

// Whether that is a scan of an index whose rows move, which missed a row that somebody changed meanwhile: it says nothing.
func mayHaveMissed(read porcupine.Operation, all []porcupine.Operation) bool {
	asked := read.Input.(call)
	if asked.kind != "read, if still" || read.Output.(answer).done {
		return false
	}
	for _, other := range all {
		c, heard := other.Input.(call), other.Output.(answer)
		shows := strings.HasPrefix(c.kind, "read") || c.kind == "describe"
		refused := !heard.pending && !heard.done && c.kind != "upsert"
		if c.key == asked.key && !shows && !refused && other.Call <= read.Return && other.Return >= read.Call {
			return true
		}
	}
	return false
}

// What porcupine says of a history.
func judge(operations []porcupine.Operation) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model, operations, patience)
}

func main() {
	least := flag.Int("least", 1, "how many histories must be judged")
	flag.Parse()
	judged, passedOver, wrong, calls := 0, 0, 0, 0
	for _, path := range flag.Args() {
		operations, err := read(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if operations == nil {
			passedOver++
			continue
		}
		judged++
		calls += len(operations)
		if said := judge(operations); said != porcupine.Ok {
			wrong++
			fmt.Printf("%s: %s\n", path, said)
		}
	}
	fmt.Printf("porcupine: %d histories of %d calls, %d wrong, %d passed over\n", judged, calls, wrong, passedOver)
	if wrong > 0 || judged < *least {
		os.Exit(1)
	}
}

// How long the search in one history may take.
const patience = time.Minute
