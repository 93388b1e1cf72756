package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/registry/manifest"
)

// apiVersion names the schema of what -o json and -o yaml print.
const apiVersion = "cli.sightline.dev/v1"

var formats = []string{"table", "wide", "json", "yaml", "jsonl", "name"}

// row is one line of a listing: its cells for table and wide, its short name,
// and what the machine formats print: a message, or a value with JSON tags.
type row struct {
	name  string
	cells []string
	item  any
}

// listing is the result of a command that shows things.
type listing struct {
	kind     string // ServiceList, …
	columns  []string
	wide     []string // further columns for -o wide, whose cells follow the others'
	rows     []row
	empty    string // said instead of a table without rows: why, and what to do
	prose    bool   // the last cell is text for people, spaces and all
	warnings []string
}

// printer writes listings in the format that -o chose.
type printer struct {
	out, err  io.Writer
	format    string
	noHeaders bool
}

func (p printer) check() error {
	if !slices.Contains(formats, p.format) {
		return usagef("output format %q is not one of %s", p.format, strings.Join(formats, ", "))
	}
	return nil
}

// human reports whether a person reads: what surrounds a table is then printed too.
func (p printer) human() bool { return p.format == "table" || p.format == "wide" }

// list prints a listing.
func (p printer) list(l listing) error {
	switch p.format {
	case "name":
		for _, r := range l.rows {
			fmt.Fprintln(p.out, plain(r.name))
		}
		return nil
	case "jsonl":
		return p.lines(l)
	case "json", "yaml":
		return p.envelope(l)
	}
	for _, w := range l.warnings {
		fmt.Fprintln(p.err, "warning:", plain(w))
	}
	if len(l.rows) == 0 {
		fmt.Fprintln(p.err, l.empty)
		return nil
	}
	return p.table(l)
}

func (p printer) table(l listing) error {
	columns := l.columns
	if p.format == "wide" {
		columns = slices.Concat(columns, l.wide)
	}
	tw := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	if !p.noHeaders {
		fmt.Fprintln(tw, strings.Join(columns, "\t"))
	}
	for _, r := range l.rows {
		cells := make([]string, len(columns))
		for i := range cells {
			cells[i] = cell(r.cells[i])
		}
		if l.prose && len(columns) == len(r.cells) {
			cells[len(cells)-1] = strings.Join(strings.Fields(plain(r.cells[len(cells)-1])), " ")
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return tw.Flush()
}

// lines prints one item a line.
func (p printer) lines(l listing) error {
	for _, r := range l.rows {
		raw, err := encode(r.item)
		if err != nil {
			return err
		}
		fmt.Fprintln(p.out, string(raw))
	}
	return nil
}

// envelope prints all items under one versioned head.
func (p printer) envelope(l listing) error {
	items := make([]json.RawMessage, 0, len(l.rows))
	for _, r := range l.rows {
		raw, err := encode(r.item)
		if err != nil {
			return err
		}
		items = append(items, raw)
	}
	raw, err := json.MarshalIndent(struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
		Warnings   []string          `json:"warnings"`
	}{apiVersion, l.kind, items, append([]string{}, l.warnings...)}, "", "  ")
	if err != nil {
		return err
	}
	if p.format == "yaml" {
		raw, err = manifest.YAML(raw)
		if err != nil {
			return err
		}
		_, err = p.out.Write(raw)
		return err
	}
	_, err = fmt.Fprintln(p.out, string(raw))
	return err
}

// encode returns an item's JSON on one line.
func encode(item any) (json.RawMessage, error) {
	m, ok := item.(proto.Message)
	if !ok {
		return json.Marshal(item)
	}
	raw, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	var compact bytes.Buffer // protojson varies its spacing on purpose
	if err := json.Compact(&compact, raw); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

// message is a message as a field of another item.
type message struct{ proto.Message }

// MarshalJSON writes the message's own JSON form.
func (m message) MarshalJSON() ([]byte, error) { return encode(m.Message) }

// cell keeps a cell free of spaces and never empty, so that awk can split a line.
func cell(s string) string {
	if s == "" {
		return "<none>"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			return '-'
		}
		return r
	}, s)
}

// plain takes what could steer a terminal out of text that others wrote.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '-'
		}
		return r
	}, s)
}

// counted is a number with its noun: 1 service, 2 services.
func counted[N uint32 | int](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// age is a duration as people read it at a glance: 5s, 3m, 2h, 4d.
func age(since time.Time, now time.Time) string {
	if since.Unix() <= 0 { // a message's time that is not given
		return "<unknown>"
	}
	switch d := max(now.Sub(since), 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// seqOf shows a wire version as people see it: seq alone where the epoch is
// the head's, epoch.seq otherwise (NAMES.md).
func seqOf(version, head string) string {
	epoch, seq, ok := strings.Cut(version, ".")
	if headEpoch, _, _ := strings.Cut(head, "."); ok && epoch == headEpoch {
		return seq
	}
	return cell(version)
}

// lower turns an enum's wire name into a word: STATE_ELIGIBLE → eligible.
func lower(enum, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(enum, prefix)), "_", "-")
}
