package manifest_test

import (
	"slices"
	"testing"

	"github.com/sightlinedev/sightline/registry/manifest"
)

// TestSettings reads a configuration file: scalars, lists, and the policy.
func TestSettings(t *testing.T) {
	settings, grants, err := manifest.Settings("s.yaml", []byte("# a comment\nregion: eu\ndns_zone: [a.test., b.test.]\n"+
		"policy:\n  resolve:\n  - {caller: \"*\", callee: shop/*}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []manifest.Setting{{Key: "region", Value: "eu", Line: 2}, {Key: "dns_zone", Value: "a.test.,b.test.", Line: 3}}; !slices.Equal(settings, want) {
		t.Errorf("got %v, want %v", settings, want)
	}
	if want := []manifest.Grant{{Caller: "*", Callee: "shop/*"}}; !slices.Equal(grants, want) {
		t.Errorf("got %v, want %v", grants, want)
	}
	if settings, _, err := manifest.Settings("empty.yaml", []byte("# nothing\n")); len(settings) != 0 || err != nil {
		t.Errorf("an empty file: %v, %v", settings, err)
	}
}

// TestSettingsProblemsHaveAPlace says where a configuration file is wrong.
func TestSettingsProblemsHaveAPlace(t *testing.T) {
	for text, want := range map[string]string{
		"region: eu\nregion: us\n": `s.yaml:2:1: "region" is there twice in the configuration; remove one`,
		"- region\n":               "s.yaml:1:1: the configuration is not a mapping of keys to values",
		"region: {name: eu}\n":     "s.yaml:1:9: region has to be a value or a list of values",
		"dns_zone: [[a]]\n":        "s.yaml:1:12: dns_zone: an element has to be a word without commas",
		"policy: {resolver: []}\n": "s.yaml:1:10: policy has only resolve, a list of {caller, callee}",
		"policy:\n  resolve:\n  - {caller: a, called: b}\n": `s.yaml:3:17: unknown key "called" in policy.resolve; known are caller, callee`,
		"region: [\n": "s.yaml: line 1: did not find expected node content",
	} {
		if _, _, err := manifest.Settings("s.yaml", []byte(text)); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
