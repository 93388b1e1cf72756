package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) == 3 && os.Args[1] == partArgument {
		if err := runPart(ctx, os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", os.Args[2], err)
			os.Exit(exitFailed)
		}
		return
	}
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings are what the command line says.
type settings struct {
	run     string
	list    bool
	json    bool
	short   bool
	streams int // 0: the benchmark's own
	rounds  int // 0: the benchmark's own
	profile string
}

// benchmark is one entry of the list.
type benchmark struct {
	name  string
	about string
	run   func(context.Context, settings, *report) error
}

func benchmarks() []benchmark {
	return []benchmark{
		{"fanout-estate", "450 services of 133 instances, 10 subscriptions a stream, 41.7 changes a second: CPU per delivered and acknowledged update against raw and linear", fanoutEstate},
		{"publish-latency", "one DeregisterInstance: from the call to the later of its durable acknowledgement and the last of 333 idle subscribers", publishLatency},
		{"evidence-ingest", "callers' outcomes, 200 samples a report: CPU of the server a sample, cores at 1.2 M samples a second, verdicts against a slow model", evidenceIngest},
		{"durable-commits", "synced commits of 100 rows through the store, against plain Pebble", durableCommits},
	}
}

// command runs the command line and returns the exit code.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var s settings
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&s.run, "run", "", "the benchmark to run, several separated by commas, or all")
	f.BoolVar(&s.list, "list", false, "list the benchmarks")
	f.BoolVar(&s.json, "json", false, "print JSON lines instead of text")
	f.BoolVar(&s.short, "short", false, "reduced size, under a minute each")
	f.IntVar(&s.streams, "streams", 0, "number of streams (0: the benchmark's own)")
	f.IntVar(&s.rounds, "rounds", 0, "number of rounds (0: the benchmark's own)")
	f.StringVar(&s.profile, "profile", "", "folder for a CPU profile of each server")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return exitOK
	} else if err != nil {
		return exitUsage
	}
	if s.list {
		for _, b := range benchmarks() {
			fmt.Fprintf(stdout, "%-16s %s\n", b.name, b.about)
		}
		return exitOK
	}
	chosen, err := choose(s.run)
	if err == nil && (f.NArg() > 0 || s.streams < 0 || s.rounds < 0) {
		err = errors.New("no arguments are taken, and -streams and -rounds are not negative")
	}
	if err != nil {
		fmt.Fprintf(stderr, "bench: %v\n", err)
		return exitUsage
	}
	return runAll(ctx, chosen, s, stdout, stderr)
}

// choose finds benchmarks by their names.
func choose(names string) ([]benchmark, error) {
	all := benchmarks()
	if names == "all" {
		return all, nil
	}
	var chosen []benchmark
	for name := range strings.SplitSeq(names, ",") {
		found := false
		for _, b := range all {
			if b.name == name {
				chosen, found = append(chosen, b), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no benchmark %q: -list shows them, -run takes one", name)
		}
	}
	return chosen, nil
}

func runAll(ctx context.Context, chosen []benchmark, s settings, stdout, stderr io.Writer) int {
	code := exitOK
	for _, b := range chosen {
		r := &report{bench: b.name, short: s.short, json: s.json, out: stdout, progress: stderr, began: time.Now()}
		if s.short {
			r.say("reduced size (-short): compare with other short runs only")
		}
		if err := b.run(ctx, s, r); err != nil {
			r.say("%v", err)
			code = exitFailed
		}
	}
	return code
}
