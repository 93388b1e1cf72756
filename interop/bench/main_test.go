package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUnknownNamesAndFlagsAreUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-run", ""}, {"-run", "fan-out"}, {"-run", "fanout-estate,nothing"}, {"-run", "publish-latency", "more"},
		{"-run", "publish-latency", "-streams", "-1"}, {"-run", "publish-latency", "-rounds", "x"}, {"-what"},
	} {
		var out, progress bytes.Buffer
		if code := command(t.Context(), args, &out, &progress); code != exitUsage {
			t.Errorf("%q ends with %d, want %d", args, code, exitUsage)
		}
		if out.Len() > 0 || progress.Len() == 0 {
			t.Errorf("%q prints %q, and says %q about it", args, out.String(), progress.String())
		}
	}
}

func TestListNamesEveryBenchmark(t *testing.T) {
	var out, progress bytes.Buffer
	if code := command(t.Context(), []string{"-list"}, &out, &progress); code != exitOK {
		t.Fatalf("-list ends with %d: %s", code, progress.String())
	}
	for _, name := range []string{"fanout-estate", "publish-latency"} {
		if !strings.Contains(out.String(), name+" ") {
			t.Errorf("%s is not in the list:\n%s", name, out.String())
		}
		if _, err := choose(name); err != nil {
			t.Error(err)
		}
	}
}

func TestLinesAreJSONWithNullWhereThereIsNoBaseline(t *testing.T) {
	var out bytes.Buffer
	r := &report{bench: "b", short: true, json: true, out: &out}
	r.against("cpu_per_delivery", "us", []float64{12, 10, 33}, "raw", []float64{10, 10, 30})
	r.against("lost", "count", []float64{0, 0, 0}, "raw", []float64{0, 0, 0})
	r.alone("p50", "ms", []float64{2, 1})
	want := `{"bench":"b","metric":"cpu_per_delivery","unit":"us","ours":12,"baseline":10,"baseline_name":"raw","ratio":1.1,"rounds":3,"short":true}
{"bench":"b","metric":"lost","unit":"count","ours":0,"baseline":0,"baseline_name":"raw","ratio":null,"rounds":3,"short":true}
{"bench":"b","metric":"p50","unit":"ms","ours":1.5,"baseline":null,"baseline_name":null,"ratio":null,"rounds":2,"short":true}
`
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
	for l := range strings.Lines(out.String()) {
		if !json.Valid([]byte(l)) {
			t.Errorf("%q is not JSON", l)
		}
	}
}

func TestTextNamesTheBaseline(t *testing.T) {
	var out bytes.Buffer
	r := &report{bench: "b", out: &out}
	r.against("m", "us", []float64{3}, "raw", []float64{2})
	if got := strings.Join(strings.Fields(out.String()), " "); got != "b m 3 us raw 2 ratio 1.5" {
		t.Errorf("printed %q", got)
	}
}
