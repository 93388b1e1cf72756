package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/sightlinedev/sightline/registry"
)

// minutes lists what is stored of a service, as "seconds after start:record".
func minutes(t *testing.T, s *Store, n registry.Name, from, until time.Time) string {
	t.Helper()
	var out []string
	_, err := s.Minutes(t.Context(), n, from, until, func(at time.Time, record []byte) bool {
		out = append(out, fmt.Sprintf("%d:%s", int(at.Sub(start).Seconds()), record))
		return len(out) < 5
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, " ")
}

func TestMinutesByRange(t *testing.T) {
	fs := vfs.NewMem()
	s, _ := open(t, fs, nil)
	for k := range 4 {
		s.SaveMinute(checkout, start.Add(time.Duration(k)*time.Minute), fmt.Append(nil, "c", k))
		s.SaveMinute(other, start.Add(time.Duration(k)*time.Minute+time.Second), fmt.Append(nil, "o", k))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, fs, nil)
	always := start.Add(time.Hour)
	for _, test := range []struct {
		name        registry.Name
		from, until time.Time
		want        string
	}{
		{checkout, time.Time{}, always, "0:c0 60:c1 120:c2 180:c3"},
		{other, time.Time{}, always, "1:o0 61:o1 121:o2 181:o3"},
		{checkout, start.Add(time.Minute), start.Add(3 * time.Minute), "60:c1 120:c2"},
		{checkout, always, always.Add(time.Hour), ""},
		{registry.Name{Namespace: "shop", Service: "check"}, time.Time{}, always, ""},
	} {
		if got := minutes(t, s, test.name, test.from, test.until); got != test.want {
			t.Errorf("%v from %v until %v: %q, want %q", test.name, test.from, test.until, got, test.want)
		}
	}
	// What does not match its checksum is left out, and counted.
	key := minuteKey(checkout, start.Add(time.Minute))
	if err := s.opening.db.Set(key, []byte("xxxxxxxxx"), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	n := 0
	damaged, err := s.Minutes(t.Context(), checkout, time.Time{}, always, func(time.Time, []byte) bool { n++; return true })
	if err != nil || damaged != 1 || n != 3 {
		t.Errorf("%d minutes, %d damaged, %v", n, damaged, err)
	}
}

func TestOldMinutesGo(t *testing.T) {
	s, _ := open(t, vfs.NewMem(), func(c *Config) { c.MinuteAge = 3 * time.Hour })
	for k := range 5 {
		s.SaveMinute(checkout, start.Add(time.Duration(k)*time.Hour), []byte("c"))
		s.SaveMinute(other, start.Add(time.Duration(4-k)*time.Hour), []byte("o"))
	}
	s.SaveMinute(registry.Name{Namespace: "a", Service: "gone"}, start, []byte("g"))
	settle(t, s)
	if err := s.opening.db.Set([]byte{prefixMinute, 'x'}, nil, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	always := start.Add(24 * time.Hour)
	r := s.openRetention(s.opening)
	r.sweep(start.Add(4 * time.Hour))
	if got := minutes(t, s, checkout, start, always); got != "3600:c 7200:c 10800:c 14400:c" {
		t.Errorf("after four hours: %s", got)
	}
	r.sweep(start.Add(4*time.Hour + 30*time.Minute)) // not yet again
	r.sweep(start.Add(5 * time.Hour))
	for n, want := range map[registry.Name]string{
		checkout: "7200:c 10800:c 14400:c", other: "7200:o 10800:o 14400:o", {Namespace: "a", Service: "gone"}: "",
	} {
		if got := minutes(t, s, n, start, always); got != want {
			t.Errorf("%v after five hours: %s", n, got)
		}
	}
	if v, err := getCopy(s.opening.db, []byte{prefixMinute, 'x'}); v != nil || err != nil {
		t.Errorf("a key of nobody is left: %v", err)
	}
	// The clock was set back: what is there is looked at again, and stays.
	r.sweep(start)
	if got := minutes(t, s, checkout, start, always); got != "7200:c 10800:c 14400:c" {
		t.Errorf("after the clock went back: %s", got)
	}
}
