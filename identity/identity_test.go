package identity_test

import (
	"strings"
	"testing"

	"github.com/sightlinedev/sightline/identity"
)

// TestParse: the canonical form alone is accepted, and a refusal names the rule.
func TestParse(t *testing.T) {
	for s, refuse := range map[string]string{
		"spiffe://prod.example/ns/shop/sa/web": "",
		"spiffe://prod.example":                "",
		"spiffe://a_b-1.c/X.y_Z-0":             "",
		"spiffe://prod.example/...":            "",
		"":                                     "does not start",
		"SPIFFE://prod.example/a":              "does not start",
		"https://prod.example/a":               "does not start",
		"spiffe://":                            "trust domain must have",
		"spiffe:///a":                          "trust domain must have",
		"spiffe://Prod.example/a":              "character",
		"spiffe://prod.example:80/a":           "character",
		"spiffe://u@prod.example/a":            "character",
		"spiffe://prod.example/":               "not allowed",
		"spiffe://prod.example/a/":             "not allowed",
		"spiffe://prod.example//a":             "not allowed",
		"spiffe://prod.example/./a":            "not allowed",
		"spiffe://prod.example/../a":           "not allowed",
		"spiffe://prod.example/%2e%2e":         "character",
		"spiffe://prod.example/a?b":            "character",
		"spiffe://prod.example/a#b":            "character",
		"spiffe://prod.example/a\x00":          "character",
		"spiffe://prod.example/ü":              "character",
		"spiffe://" + strings.Repeat("a", 256): "trust domain must have",
		"spiffe://p/" + strings.Repeat("a", identity.MaxIDLength-11): "",
		"spiffe://p/" + strings.Repeat("a", identity.MaxIDLength-10): "2049 bytes",
	} {
		id, err := identity.Parse(s)
		switch {
		case refuse == "" && (err != nil || id.String() != s):
			t.Errorf("%.60q: %v, %v", s, id, err)
		case refuse != "" && (err == nil || !strings.Contains(err.Error(), refuse)):
			t.Errorf("%.60q: %v, want %q", s, err, refuse)
		case refuse != "" && !id.IsZero():
			t.Errorf("%.60q: refused, and yet %v", s, id)
		}
	}
}

// TestClass: the class follows from the path, and from nothing like it.
func TestClass(t *testing.T) {
	for path, want := range map[string]identity.Class{
		"/ns/shop/sa/web": identity.Workload, "": identity.Workload,
		"/sightline/agent/n": identity.Agent, "/sightline/prober/p": identity.Prober,
		"/sightline/reconciler/k": identity.Reconciler, "/sightline/peer/eu": identity.Peer,
		"/sightline/replica/r": identity.Replica, "/sightline/server/s": identity.Replica,
		"/sightline/reader/d": identity.Reader, "/sightline/operator/a": identity.Operator,
		"/sightline/security-admin/b": identity.SecurityAdmin,
		"/sightline/operator":         identity.Workload, "/sightline/operator/a/b": identity.Workload,
		"/Sightline/operator/a": identity.Workload, "/x/sightline/operator/a": identity.Workload,
		"/sightline/owner/a": identity.Workload, "/ns/sightline/sa/operator": identity.Workload,
	} {
		if got := identity.MustParse("spiffe://prod.example" + path).Class(); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	if got := (identity.ID{}).Class(); got != identity.Anonymous {
		t.Errorf("no identity: %v", got)
	}
	for i, c := range identity.Classes {
		if int(c) != i || c.String() == "" {
			t.Errorf("class %d is listed as %v", i, c)
		}
	}
}

// TestWorkload: the template's two names, and nothing from another shape.
func TestWorkload(t *testing.T) {
	for path, want := range map[string]string{
		"/ns/shop/sa/web": "shop web true", "/ns/shop/sa/web/x": "  false", "/ns/shop": "  false", "/sa/web/ns/shop": "  false", "": "  false",
	} {
		ns, sa, ok := identity.MustParse("spiffe://prod.example" + path).Workload()
		if got := ns + " " + sa + " " + map[bool]string{true: "true", false: "false"}[ok]; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// TestPatterns: what each written form covers.
func TestPatterns(t *testing.T) {
	for _, row := range []struct{ pattern, id, want string }{
		{"*", "spiffe://a/x", "yes"}, {"*", "", "yes"},
		{"spiffe://a/x", "spiffe://a/x", "yes"}, {"spiffe://a/x", "spiffe://a/x/y", "no"}, {"spiffe://a/x", "", "no"},
		{"spiffe://a/*", "spiffe://a/x", "yes"}, {"spiffe://a/*", "spiffe://b/x", "no"}, {"spiffe://a/*", "spiffe://a.b/x", "no"}, {"spiffe://a/*", "", "no"},
		{"spiffe://a/ns/x/*", "spiffe://a/ns/x/sa/y", "yes"}, {"spiffe://a/ns/x/*", "spiffe://a/ns/x", "yes"},
		{"spiffe://a/ns/x/*", "spiffe://a/ns/xy", "no"}, {"spiffe://a/ns/x/*", "spiffe://b/ns/x/sa/y", "no"},
	} {
		p, err := identity.ParsePattern(row.pattern)
		if err != nil {
			t.Fatal(err)
		}
		var id identity.ID
		if row.id != "" {
			id = identity.MustParse(row.id)
		}
		if got := p.Match(id); got != (row.want == "yes") {
			t.Errorf("%s matches %q: %v", row.pattern, row.id, got)
		}
		if p.String() != row.pattern {
			t.Errorf("%q is written %q", row.pattern, p)
		}
	}
	for _, bad := range []string{"", "/*", "a", "spiffe://a/*/b", "spiffe://a/x*", "spiffe://*/x", "**"} {
		if p, err := identity.ParsePattern(bad); err == nil {
			t.Errorf("%q was accepted as %v", bad, p)
		}
	}
	if (identity.Pattern{}).Match(identity.MustParse("spiffe://a/x")) || !(identity.Pattern{}).Match(identity.ID{}) {
		t.Error("the zero pattern must match the anonymous caller alone")
	}
}

// FuzzParse: what is accepted is canonical, bounded and comes back as written.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"spiffe://prod.example/ns/a/sa/b", "spiffe://a", "spiffe://a/%2e", "spiffe://A/b", "spiffe://a//b", "spiffe://a/b/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := identity.Parse(s)
		if err != nil {
			if !id.IsZero() {
				t.Errorf("%q: refused, and yet %v", s, id)
			}
			return
		}
		switch {
		case id.String() != s, len(s) > identity.MaxIDLength, id.IsZero(),
			id.TrustDomain() != strings.ToLower(id.TrustDomain()), strings.ContainsAny(s, "%?#@ \\"),
			id.Path() != "" && (id.Path()[0] != '/' || strings.HasSuffix(id.Path(), "/")):
			t.Errorf("%q was accepted as %q", s, id)
		}
		_ = id.Class().String()
		for _, form := range []string{s, s + "/*"} {
			p, err := identity.ParsePattern(form)
			if err != nil || !p.Match(id) || p.String() != form {
				t.Errorf("pattern %q of its own ID: %v, %v", form, p, err)
			}
		}
	})
}
