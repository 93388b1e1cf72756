package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/sightlinedev/sightline/server"
)

// TestScenarios runs command lines against a real server and compares what a
// person sees. Directives:
//
//	serve                  starts a development server, the current context
//	stop                   stops it
//	file name=PATH         writes a file into the test's folder, {dir}
//	until says=TEXT        repeats a command line until its output has the text
//	run                    a command line; further lines are its standard input
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			w := newWorld(t)
			datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "serve":
					w.serve(server.Config{Version: "0.0.0-test", Name: "test"})
				case "stop":
					w.stop()
				case "file":
					var name string
					d.ScanArgs(t, "name", &name)
					w.file(name, d.Input+"\n")
				case "until":
					var says string
					d.ScanArgs(t, "says", &says)
					eventually(t, d.Input+" says "+says, func() error {
						if got := w.transcript(d.Input); !strings.Contains(got, says) {
							return errors.New(got)
						}
						return nil
					})
				case "run":
					return w.transcript(d.Input)
				default:
					d.Fatalf(t, "unknown directive %q", d.Cmd)
				}
				return "ok"
			})
		})
	}
}

// transcript runs `sightline …` and shows its exit code and both outputs.
func (w *world) transcript(input string) string {
	line, stdin, _ := strings.Cut(input, "\n")
	args := strings.Fields(line)
	r := w.run(stdin, args[1:]...)
	var b strings.Builder
	b.WriteString(r.out)
	if r.errOut != "" {
		b.WriteString("[stderr]\n" + r.errOut)
	}
	fmt.Fprintf(&b, "[exit %d]", r.code)
	return w.steady(b.String())
}
