package limits_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"testing"
	"time"

	"github.com/sightlinedev/sightline/server/limits"
)

// TestEveryLimitHasADefault: a zero would mean "none", and there is no such limit.
func TestEveryLimitHasADefault(t *testing.T) {
	v := reflect.ValueOf(limits.Default())
	for i := range v.NumField() {
		group := v.Field(i)
		for k := range group.NumField() {
			if group.Field(k).IsZero() {
				t.Errorf("%s.%s is zero", v.Type().Field(i).Name, group.Type().Field(k).Name)
			}
		}
	}
}

// TestEveryLimitSaysWhatItBounds: each field has a comment with its meaning.
func TestEveryLimitSaysWhatItBounds(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "limits.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name == "Limits" {
			return true
		}
		for _, f := range spec.Type.(*ast.StructType).Fields.List {
			if f.Doc.Text() == "" && f.Comment.Text() == "" {
				t.Errorf("%s.%s has no comment", spec.Name.Name, f.Names[0].Name)
			}
		}
		return true
	})
}

// TestSettledNumbers pins what RELIABILITY.md §5 and DESIGN.md §1 settle.
func TestSettledNumbers(t *testing.T) {
	l := limits.Default()
	for name, row := range map[string][2]any{
		"handshake":            {l.Transport.HandshakeTimeout, 5 * time.Second},
		"handshakes":           {l.Transport.Handshakes, 256},
		"connections a source": {l.Transport.ConnectionsPerSource, 256},
		"header":               {l.Transport.MaxHeaderBytes, uint32(16384)},
		"keepalive":            {l.Transport.KeepaliveTime, 30 * time.Second},
		"keepalive timeout":    {l.Transport.KeepaliveTimeout, 10 * time.Second},
		"client pings":         {l.Transport.MinClientPing, time.Second},
		"age":                  {l.Transport.MaxConnectionAge, 30 * time.Minute},
		"grace":                {l.Transport.MaxConnectionGrace, time.Minute},
		"xDS streams":          {l.XDS.ConcurrentStreams, uint32(16)},
		"API streams":          {l.API.ConcurrentStreams, uint32(100)},
		"xDS request":          {l.XDS.MaxRequestBytes, 64 << 20},
		"report":               {l.Reports.MaxMessageBytes, 64 << 10},
		"API request":          {l.API.MaxRequestBytes, 256 << 10},
		"names":                {l.XDS.Names, 5000},
		"agent names":          {l.XDS.AgentNames, 100000},
		"assignment":           {l.XDS.AssignmentBytes, 3 << 20},
		"stall":                {l.XDS.StallAfter, 30 * time.Second},
		"DNS payload":          {l.DNS.PayloadBytes, 1232},
		"DNS records":          {l.DNS.MaxRecords, 100},
		"write timeout":        {l.Registry.WriteTimeout, time.Second},
	} {
		if row[0] != row[1] {
			t.Errorf("%s: %v, settled as %v", name, row[0], row[1])
		}
	}
	if d, e := limits.Default(), limits.Default(); d != e {
		t.Error("two defaults differ")
	}
}
