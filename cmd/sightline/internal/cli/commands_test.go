package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/devca"
	"github.com/sightlinedev/sightline/registry/manifest"
	"github.com/sightlinedev/sightline/server"
)

// TestEveryCommandHasHelp prints the help of every command: a sentence, its
// usage, and examples where it takes something.
func TestEveryCommandHasHelp(t *testing.T) {
	w := newWorld(t)
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		r := w.run("", append(path, "--help")...)
		if r.code != exitOK || r.errOut != "" || !strings.Contains(r.out, "Usage:\n") || !strings.Contains(r.out, cmd.CommandPath()) {
			t.Errorf("%s --help ended with %d:\n%s%s", cmd.CommandPath(), r.code, r.out, r.errOut)
		}
		if !cmd.Hidden && (cmd.Short == "" || strings.HasSuffix(cmd.Short, ".")) {
			t.Errorf("%s: its summary is %q", cmd.CommandPath(), cmd.Short)
		}
		for _, sub := range cmd.Commands() {
			if sub.Name() != "help" && sub.Name() != "completion" {
				walk(sub)
			}
		}
	}
	walk((&app{}).root())
	if r := w.run("", "client"); r.code != exitOK || !strings.Contains(r.out, "list") {
		t.Errorf("a noun alone: %d\n%s", r.code, r.out)
	}
}

// TestDev runs the dev command: it says where everything is, one fact a line
// when nobody looks, is the current context while it runs, and leaves nothing.
func TestDev(t *testing.T) {
	w := newWorld(t)
	t.Setenv("TMPDIR", filepath.Join(w.dir, "tmp"))
	if err := os.Mkdir(filepath.Join(w.dir, "tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan result, 1)
	go func() {
		ended <- w.runCtx(ctx, "", strings.Fields("dev --xds-listen 127.0.0.1:0 --api-listen 127.0.0.1:0 --dns-listen 127.0.0.1:0 --http-listen 127.0.0.1:0")...)
	}()
	w.until("status", "ready")
	if _, current := w.contexts(); current != "dev" {
		t.Errorf("the current context is %q", current)
	}
	at, err := loadTarget("")
	if err != nil {
		t.Fatal(err)
	}
	if out := w.ok("bootstrap", "grpc"); !strings.Contains(out, at.XDS) || !strings.Contains(out, at.WorkloadCert) {
		t.Errorf("the bootstrap is of no workload of %s:\n%s", at.XDS, out)
	}
	cancel()
	r := <-ended
	if r.code != exitOK {
		t.Errorf("it ended with %d: %s", r.code, r.errOut)
	}
	for _, fact := range []string{"api=" + at.API, "xds=" + at.XDS, "dns=" + at.DNS, "http=" + at.HTTP, "trust_domain=sightline.test"} {
		if !strings.Contains(r.out, fact+"\n") {
			t.Errorf("no line %q in\n%s", fact, r.out)
		}
	}
	for line := range strings.Lines(r.errOut) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a log line off a terminal is not JSON: %s", line)
		}
	}
	if names, current := w.contexts(); len(names) != 0 || current != "" {
		t.Errorf("contexts are left: %v, current %q", names, current)
	}
	if left, err := os.ReadDir(filepath.Join(w.dir, "tmp")); err != nil || len(left) != 0 {
		t.Errorf("state is left: %v, %v", left, err)
	}
}

// TestDevWithoutContext leaves the contexts alone.
func TestDevWithoutContext(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	r := w.runCtx(ctx, "", strings.Fields("dev --no-context --data {dir}/data --xds-listen 127.0.0.1:0 --api-listen 127.0.0.1:0 --dns-listen 127.0.0.1:0 --http-listen 127.0.0.1:0")...)
	if names, _ := w.contexts(); r.code != exitOK || len(names) != 0 {
		t.Errorf("ended with %d, contexts %v: %s", r.code, names, r.errOut)
	}
}

// TestServer runs the server command with identities from files, the roots by
// the flag that all commands share, and settings from a file.
func TestServer(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.dir, "identity")
	now := time.Now()
	ca, _, err := devca.Prepare(dir, "prod.test", now)
	if err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"srv": "/sightline/server/one", "op": "/sightline/operator/me"} {
		if _, err := ca.Write(dir, name, identity.MustParse("spiffe://prod.test"+path), now); err != nil {
			t.Fatal(err)
		}
	}
	srv, op := devca.FilesOf(dir, "srv"), devca.FilesOf(dir, "op")
	api := nobody(t)
	w.file("sightline.yaml", fmt.Sprintf("data: %s/data\nsvid: %s\nsvid_key: %s\nbundle: %s\ndns_zone: [prod.test.]\n"+
		"xds_listen: 127.0.0.1:0\ndns_listen: 127.0.0.1:0\nhttp_listen: 127.0.0.1:0\n", w.dir, srv.SVID, srv.Key, srv.Bundle))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan result, 1)
	go func() { ended <- w.runCtx(ctx, "", "server", "--config", "{dir}/sightline.yaml", "--api-listen", api) }()
	line := strings.Join([]string{"status --api", api, "--cert", op.SVID, "--key", op.Key, "--bundle", op.Bundle}, " ")
	w.until(line, "ready")
	cancel()
	if r := <-ended; r.code != exitOK || r.out != "" {
		t.Errorf("ended with %d, output %q: %s", r.code, r.out, r.errOut)
	}
	if r := w.run("", strings.Fields(line)...); r.code != exitUnreachable {
		t.Errorf("afterwards: %d: %s", r.code, r.errOut)
	}
}

// TestExamples applies each example file on a server of its own, twice, and
// deletes it again.
func TestExamples(t *testing.T) {
	const folder = "../../../../examples"
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		tried++
		t.Run(e.Name(), func(t *testing.T) {
			w := newWorld(t).serve(server.Config{})
			file := filepath.Join(folder, e.Name())
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := manifest.Parse(file, raw)
			if err != nil {
				t.Fatal(err)
			}
			if out := w.ok("apply", "-f", file); strings.Count(out, " created\n") != len(objects) {
				t.Errorf("%d objects:\n%s", len(objects), out)
			}
			if out := w.ok("apply", "-f", file); strings.Count(out, " unchanged\n") != len(objects) {
				t.Errorf("a second time:\n%s", out)
			}
			if out := w.ok("delete", "-f", file); strings.Count(out, " deleted\n") != len(objects) {
				t.Errorf("deleted:\n%s", out)
			}
		})
	}
	if tried < 3 {
		t.Errorf("%d examples in %s", tried, folder)
	}
	w := newWorld(t).serve(server.Config{})
	if out := w.ok("apply", "-f", folder, "--dry-run=server"); out == "" {
		t.Error("the folder as a whole declares nothing")
	}
}

// TestBootstrapToAFile writes the file whole, and an export line that a shell
// reads back as the same document.
func TestBootstrapToAFile(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	r := w.run("", "bootstrap", "grpc", "-O", "{dir}/b.json", "--node-id", "it's me")
	raw, err := os.ReadFile(filepath.Join(w.dir, "b.json"))
	if r.code != exitOK || r.out != "" || !strings.Contains(r.errOut, "written") || err != nil || !json.Valid(raw) {
		t.Errorf("ended with %d, %v: %s%s", r.code, err, r.out, r.errOut)
	}
	line := w.ok("bootstrap", "grpc", "--shell", "--node-id", "it's me")
	quoted := strings.TrimSuffix(strings.TrimPrefix(line, "export GRPC_XDS_BOOTSTRAP_CONFIG='"), "'\n")
	if got := strings.ReplaceAll(quoted, `'\''`, "'"); got != strings.TrimSpace(string(raw)) {
		t.Errorf("the shell reads\n%s", got)
	}
	for args, want := range map[string]string{
		"envoy --listen here": `--listen "here": write ip:port`,
		"envoy --admin 9901":  `--admin "9901": write ip:port`,
		"envoy --xds host:1":  "Envoy's static cluster needs ip:port",
	} {
		if r := w.run("", strings.Fields("bootstrap "+args)...); r.code == exitOK || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: %d: %s", args, r.code, r.errOut)
		}
	}
	if r := w.run("", "bootstrap", "grpc", "-O", "{dir}/none/b.json"); r.code != exitFailure {
		t.Errorf("a folder that is not there: %d", r.code)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was made: %v", err)
	}
}
