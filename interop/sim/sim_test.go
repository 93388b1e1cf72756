package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// Every row of the simulation holds, with few seeds and an hour in place of the
// day. The whole of it: go run ./interop/sim -run all
func TestRows(t *testing.T) {
	for _, r := range append(rows(), fuzzRow()) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			s := settings{seeds: min(r.seeds, 4), first: 1, days: 1.0 / 24}
			if strings.Contains(r.name, "200x300") {
				s.days /= 6 // millions of calls
			}
			if result := r.simulate(s, &bytes.Buffer{}); len(result.Missed) > 0 {
				t.Errorf("%s:\n%s", r.about, strings.Join(result.Missed[:min(6, len(result.Missed))], "\n"))
			}
		})
	}
}

// The command prints what it found as JSON, refuses what it cannot run, and says
// so with its exit code.
func TestCommand(t *testing.T) {
	var out, errs bytes.Buffer
	if code := command([]string{"-run", "dependency", "-seeds", "1", "-json"}, &out, &errs); code != exitOK {
		t.Fatalf("exit %d: %s%s", code, out.String(), errs.String())
	}
	var r result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Row != "dependency" || r.Runs != 1 {
		t.Errorf("%v: %s", err, out.String())
	}
	for _, args := range [][]string{{"-run", "nothing"}, {}, {"-run", "fuzz", "-days", "0"}, {"-run", "fuzz", "extra"}, {"-bad"}} {
		if code := command(args, &out, &errs); code != exitUsage {
			t.Errorf("%v: exit %d", args, code)
		}
	}
	out.Reset()
	if code := command([]string{"-list"}, &out, &errs); code != exitOK || !strings.Contains(out.String(), "grey-40") {
		t.Errorf("exit %d: %s", code, out.String())
	}
}
