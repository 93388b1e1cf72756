package metrics_test

import (
	"io"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sightlinedev/sightline/server/metrics"
)

func census() metrics.Census {
	return metrics.Census{Version: 117, Services: 3, Instances: map[string]int{"eligible": 11, "unknown": 1}, GuardsTripped: 1, Complete: true}
}

// TestNamesPassPromlint reports everything once, by reflection, so that no
// metric escapes, and checks the names against Prometheus' own rules.
func TestNamesPassPromlint(t *testing.T) {
	m := metrics.New("1.0", "abc", census)
	v := reflect.ValueOf(m)
	for i := range v.NumMethod() {
		f := v.Method(i)
		if f.Type().NumOut() > 0 { // Handler, Gatherer
			continue
		}
		f.Call(arguments(t, f.Type()))
	}
	problems, err := testutil.GatherAndLint(m.Gatherer())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "sightline_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, f := range families {
		if name := f.GetName(); strings.HasPrefix(name, "sightline_") {
			named++
		} else if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s lacks the prefix of the application", name)
		}
	}
	if named < 40 {
		t.Errorf("only %d metrics were reported", named)
	}
}

func arguments(t *testing.T, f reflect.Type) []reflect.Value {
	var args []reflect.Value
	for i := range f.NumIn() {
		in := f.In(i)
		switch {
		case f.IsVariadic() && i == f.NumIn()-1:
			args = append(args, reflect.ValueOf("other"))
		case in == reflect.TypeFor[time.Time]():
			args = append(args, reflect.ValueOf(time.Unix(1, 0)))
		case in == reflect.TypeFor[time.Duration]():
			args = append(args, reflect.ValueOf(time.Second))
		case in.Kind() == reflect.String:
			args = append(args, reflect.ValueOf("some"))
		case in.Kind() == reflect.Int:
			args = append(args, reflect.ValueOf(1))
		case in.Kind() == reflect.Bool:
			args = append(args, reflect.ValueOf(true))
		default:
			t.Fatalf("an argument of type %v", in)
		}
	}
	return args
}

// TestScrape shows what a person sees.
func TestScrape(t *testing.T) {
	m := metrics.New("1.0", "abc", census)
	m.Nacked("cds")
	m.StoreState("full", "writable", "full", "frozen")
	m.Reports("self", "unattributed", 3)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`sightline_views_current_version 117`,
		`sightline_views_complete 1`,
		`sightline_instances{state="eligible"} 11`,
		`sightline_unknown_ratio 0.08333333333333333`,
		`sightline_fraction_guard_tripped 1`,
		`sightline_xds_nacks_total{type="cds"} 1`,
		`sightline_store_state{state="full"} 1`,
		`sightline_store_state{state="writable"} 0`,
		`sightline_reports_total{class="self",result="unattributed"} 3`,
	} {
		if !strings.Contains(string(body), line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
}
