package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// Histories named wrong-… are refused, the others are not.
func TestPlantedHistories(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(paths) < 6 {
		t.Fatalf("histories are missing: %v, %v", paths, err)
	}
	for _, path := range paths {
		operations, err := read(path)
		if err != nil {
			t.Fatal(err)
		}
		if operations == nil {
			t.Fatalf("%s is passed over", path)
		}
		want := porcupine.Ok
		if strings.HasPrefix(filepath.Base(path), "wrong-") {
			want = porcupine.Illegal
		}
		if said := judge(operations); said != want {
			t.Errorf("%s: %s, not %s", path, said, want)
		}
	}
}
