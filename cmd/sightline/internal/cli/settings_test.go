package cli

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// settled runs the reading of settings as the server command does it.
func settled(t *testing.T, environ map[string]string, args ...string) (*serverFlags, string, error) {
	t.Helper()
	for name, value := range environ {
		t.Setenv(name, value)
	}
	s := &serverFlags{}
	var said bytes.Buffer
	cmd := &cobra.Command{Use: "server", SilenceErrors: true, SilenceUsage: true}
	cmd.SetErr(&said)
	cmd.SetArgs(args)
	s.add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return s.settle(cmd) }
	err := cmd.Execute()
	return s, said.String(), err
}

// TestFlagOverEnvironmentOverFile gives each setting the value of the first
// place that has one.
func TestFlagOverEnvironmentOverFile(t *testing.T) {
	w := newWorld(t)
	file := w.file("sightline.yaml", "region: file\nzone: file\nname: file\ndns_zone: [a.test., b.test.]\nmanifests: [local=/m]\n"+
		"log_level: warn\npolicy: {resolve: [{caller: \"*\", callee: shop/*}]}\n")
	s, _, err := settled(t, map[string]string{"SIGHTLINE_REGION": "env", "SIGHTLINE_ZONE": "env"}, "--config", file, "--region", "flag")
	if err != nil {
		t.Fatal(err)
	}
	if s.cfg.Region != "flag" || s.cfg.Zone != "env" || s.cfg.Name != "file" {
		t.Errorf("region %q, zone %q, name %q", s.cfg.Region, s.cfg.Zone, s.cfg.Name)
	}
	if !slices.Equal(s.cfg.DNSZones, []string{"a.test.", "b.test."}) || s.cfg.Manifests["local"] != "/m" || s.logLevel != "warn" {
		t.Errorf("zones %v, manifests %v, level %s", s.cfg.DNSZones, s.cfg.Manifests, s.logLevel)
	}
	if s.cfg.Policy == nil || len(s.cfg.Policy.Resolve) != 1 || s.cfg.Policy.Resolve[0].Callee != "shop/*" {
		t.Errorf("policy %+v", s.cfg.Policy)
	}
}

// TestEnvironmentAlone is read without a file too, and a misspelt variable is
// told.
func TestEnvironmentAlone(t *testing.T) {
	newWorld(t)
	s, said, err := settled(t, map[string]string{"SIGHTLINE_ZONE": "env", "SIGHTLINE_ZOEN": "x"})
	if err != nil || s.cfg.Zone != "env" {
		t.Errorf("zone %q, %v", s.cfg.Zone, err)
	}
	if !strings.Contains(said, "SIGHTLINE_ZOEN is set and is no setting of server") || strings.Contains(said, "SIGHTLINE_ZONE ") {
		t.Errorf("said %q", said)
	}
}

// TestBadSettingsHaveAPlace refuses with the file's line or the variable's name.
func TestBadSettingsHaveAPlace(t *testing.T) {
	w := newWorld(t)
	for text, want := range map[string]string{
		"region: eu\nzoone: a\n":                     `sightline.yaml:2: "zoone" is not a setting`,
		"region: eu\nregion: us\n":                   `sightline.yaml:2:1: "region" is there twice`,
		"config: other.yaml\n":                       `sightline.yaml:1: "config" is not a setting`,
		"zone: {name: a}\n":                          "sightline.yaml:1:7: zone has to be a value",
		"envoy_outbound: here\n":                     `--envoy-outbound "here": write ip:port`,
		"manifests: folder\n":                        `--manifests "folder": write NAME=FOLDER`,
		"policy: {resolve: [{caller: a, calle: b}]}": `unknown key "calle"`,
	} {
		file := w.file("sightline.yaml", text)
		if _, _, err := settled(t, nil, "--config", file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if _, _, err := settled(t, map[string]string{"SIGHTLINE_LOG_LEVEL": "loud"}); err == nil || !strings.Contains(err.Error(), `"loud"`) {
		t.Errorf("a bad variable: %v", err)
	}
}

// TestExampleConfiguration reads the example's every key.
func TestExampleConfiguration(t *testing.T) {
	newWorld(t)
	s := &serverFlags{}
	a := &app{}
	var cmd *cobra.Command
	for _, c := range a.root().Commands() {
		if c.Name() == "server" {
			cmd = c
		}
	}
	s.file = "../../../../examples/server/sightline.yaml"
	cmd.InheritedFlags() // the global ones are settings of the server too
	if err := s.readConfig(cmd); err != nil {
		t.Fatal(err)
	}
	if cmd.Flags().Lookup("data").Value.String() != "/var/lib/sightline" || len(s.cfg.Policy.Resolve) != 2 || a.override.Bundle == "" {
		t.Errorf("data %s, policy %+v, bundle %q", cmd.Flags().Lookup("data").Value, s.cfg.Policy, a.override.Bundle)
	}
}

// TestLogsArePlainOffATerminal writes JSON where nobody looks, and no colours
// where they are not wanted.
func TestLogsArePlainOffATerminal(t *testing.T) {
	for format, want := range map[string]string{"auto": `"msg":"hello"`, "json": `"msg":"hello"`, "text": "hello"} {
		var b bytes.Buffer
		log, err := (&serverFlags{logLevel: "info", logFormat: format}).logger(&b)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("hello")
		log.Debug("too much")
		if !strings.Contains(b.String(), want) || strings.Contains(b.String(), "\x1b") || strings.Contains(b.String(), "too much") {
			t.Errorf("%s: %q", format, b.String())
		}
	}
	if _, err := (&serverFlags{logLevel: "info", logFormat: "xml"}).logger(os.Stderr); err == nil {
		t.Error("log format xml is taken")
	}
	t.Setenv("NO_COLOR", "1")
	if colour(os.Stderr) {
		t.Error("NO_COLOR is ignored")
	}
}
