package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sightlinedev/sightline/registry"
)

// TestSights runs the timelines of testdata/sights: the observers alone, told what
// probers see, where a simulated region would not show one of their rules by itself.
// Commands:
//
//	sees p1@z1 z2 4 [failing=4] [contested=0] [agreed=0]   of 4 targets, the others
//	        being good, from now on; 0: none
//	quiet    the service tells nothing more; told: it does again
//	run 5s   printing the stance and incidents as they change
func TestSights(t *testing.T) {
	datadriven.Walk(t, "testdata/sights", func(t *testing.T, path string) {
		s := &sights{region: region{now: epoch, observers: NewObservers(), stance: &Stance{}}, cells: make(map[ProbeCell]ProbeCount)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.text.Reset()
			for _, line := range strings.Split(strings.TrimSpace(d.Cmd+" "+argLine(d)+"\n"+d.Input), "\n") {
				if err := s.command(strings.Fields(line)); err != nil {
					d.Fatalf(t, "%q: %v", line, err)
				}
			}
			return s.text.String()
		})
	})
}

// sights is one service's tally, made by hand.
type sights struct {
	region
	cells   map[ProbeCell]ProbeCount
	counted time.Time
	tally   Tally
	quiet   bool
}

func (s *sights) command(f []string) error {
	switch f[0] {
	case "sees":
		return s.sees(f[1:])
	case "quiet", "told":
		s.quiet = f[0] == "quiet"
	case "run":
		d, err := time.ParseDuration(f[1])
		for end := s.now.Add(d); s.now.Before(end); {
			s.now = s.now.Add(tick)
			s.judgeAll()
		}
		return err
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

func (s *sights) sees(f []string) error {
	_, zone, _ := strings.Cut(f[0], "@")
	cell := ProbeCell{Prober: Prober{Name: f[0], Zone: zone}, Zone: f[1]}
	var n ProbeCount
	for k, arg := range f[2:] {
		key, val, named := strings.Cut(arg, "=")
		if !named {
			val = key
		}
		v, err := strconv.Atoi(val)
		switch {
		case err != nil:
			return err
		case k == 0:
			n.Targets, n.Recent = v, v
		case key == "failing":
			n.Failing, n.RecentFailing = v, v
		case key == "contested":
			n.Contested = v
		case key == "agreed":
			n.Agreed = v
		default:
			return fmt.Errorf("unknown argument %s", key)
		}
	}
	n.Good = n.Targets - n.Failing
	s.cells[cell] = n
	cells := slices.SortedFunc(maps.Keys(s.cells), func(a, b ProbeCell) int {
		return cmp.Or(cmp.Compare(a.Prober.Name, b.Prober.Name), cmp.Compare(a.Zone, b.Zone))
	})
	s.counted = s.counted.Add(time.Second) // a name for what is told, no more
	s.tally = Tally{Name: registry.Name{Namespace: "shop", Service: "svc1"}, Members: 12, Cells: cells, Counted: s.counted}
	for _, c := range cells {
		s.tally.Probes = append(s.tally.Probes, s.cells[c])
	}
	return nil
}

func (s *sights) judgeAll() {
	if !s.quiet {
		s.observers.Take(s.now, []Tally{s.tally})
	}
	stance, changed, incidents := s.observers.Judge(s.now)
	for _, in := range incidents {
		over := ""
		if in.Over {
			over = " over"
		}
		fmt.Fprintf(&s.text, "%s incident %s %s%s: %s\n", s.stamp(), in.Kind, cmp.Or(in.Zone, "region"), over, in.Detail)
	}
	if changed {
		s.stance = stance
		fmt.Fprintf(&s.text, "%s stance: %s\n", s.stamp(), s.stanceText())
	}
}
