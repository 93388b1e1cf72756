package cli

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/sightlinedev/sightline/server"
)

// shop declares a service with one instance.
const shop = `
apiVersion: sightline.dev/v1
kind: Service
metadata: {namespace: shop, name: checkout}
spec:
  ports: [{name: grpc, number: 8443, protocol: grpc}]
  exposure: {dnsAnonymous: true}
---
apiVersion: sightline.dev/v1
kind: Instance
metadata: {namespace: shop, name: checkout-1}
spec:
  service: checkout
  identity: spiffe://sightline.test/ns/shop/sa/checkout
  address: 127.0.0.1
  ports: [{name: grpc, number: 8444}]
`

// shows are the commands that list something, with the kind of their envelope
// and the name of what they list.
var shows = []struct{ line, kind, name string }{
	{"service list", "ServiceList", "service/shop/checkout"},
	{"service describe shop/checkout", "ServiceDescriptionList", "service/shop/checkout"},
	{"instance list", "InstanceList", "instance/shop/checkout/checkout-1"},
	{"instance describe shop/checkout/checkout-1", "InstanceDescriptionList", "instance/shop/checkout/checkout-1"},
	{"resolve shop/checkout", "ViewList", "shop/checkout/checkout-1"},
	{"resolve shop/checkout --via dns", "AddressList", "127.0.0.1"},
	{"client list", "ClientList", "formats-test"},
	{"status", "StatusList", ""},
	{"why shop/checkout", "ExplanationList", "shop/checkout"},
	{"why shop/checkout/checkout-1", "ExplanationList", "shop/checkout/checkout-1"},
	{"history shop/checkout", "TransitionList", "shop/checkout/checkout-1"},
	{"view list", "ViewList", "shop/checkout"},
	{"view get shop/checkout", "ViewList", "shop/checkout/checkout-1"},
	{"view diff shop/checkout 1..", "ViewDiffList", "shop/checkout"},
	{"contract list", "ContractList", "contract/shop/checkout"},
	{"contract get shop/checkout", "ContractDescriptionList", "contract/shop/checkout"},
	{"version", "VersionList", "0.0.0-test"},
	{"apply -f {dir}/shop.yaml", "ChangeList", "service/shop/checkout"},
}

// TestEveryCommandHasEveryFormat lists one thing with every command in every
// format: all of them work, and speak of the same thing.
func TestEveryCommandHasEveryFormat(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	w.file("other.yaml", strings.Split(cart, "---")[0])
	w.file("shop.yaml", shop)
	w.file("contract.yaml", "apiVersion: sightline.dev/v1\nkind: Contract\nmetadata: {namespace: shop, name: checkout}\nspec: {guardPercent: 60}\n")
	w.ok("apply", "-f", "{dir}/shop.yaml")
	w.ok("apply", "-f", "{dir}/contract.yaml", "-f", "{dir}/other.yaml")
	w.until("resolve shop/checkout", "eligible")
	w.file("more.yaml", strings.NewReplacer("checkout-1", "checkout-2", "127.0.0.1", "127.0.0.2").Replace(strings.Split(shop, "---")[1]))
	w.ok("apply", "-f", "{dir}/more.yaml")
	w.until("resolve shop/checkout", "checkout-2")
	w.subscribe("formats-test", "checkout.shop")
	w.until("client list", "formats-test")
	for _, show := range shows {
		t.Run(show.line, func(t *testing.T) {
			line := func(format string) string {
				return w.ok(append(strings.Fields(show.line), "-o", format)...)
			}
			if got := line("name"); show.name != "" && !slices.Contains(strings.Fields(got), show.name) {
				t.Errorf("name: got %q, want %q in it", got, show.name)
			}
			fromJSON := checkEnvelope(t, "json", []byte(line("json")), show.kind)
			fromYAML := checkEnvelope(t, "yaml", yamlToJSON(t, line("yaml")), show.kind)
			var lines []map[string]any
			for l := range strings.Lines(line("jsonl")) {
				lines = append(lines, object(t, []byte(l)))
			}
			if len(fromJSON) != len(fromYAML) || len(fromJSON) != len(lines) {
				t.Errorf("json has %d items, yaml %d, jsonl %d", len(fromJSON), len(fromYAML), len(lines))
			}
			for i := range fromJSON {
				if !slices.Equal(keys(fromJSON[i]), keys(lines[i])) || !slices.Equal(keys(fromJSON[i]), keys(fromYAML[i])) {
					t.Errorf("item %d differs: json %v, yaml %v, jsonl %v", i, keys(fromJSON[i]), keys(fromYAML[i]), keys(lines[i]))
				}
			}
			if table, wide := line("table"), line("wide"); table == "" || len(wide) < len(table) {
				t.Errorf("wide shows less than table:\n%s\n%s", table, wide)
			}
		})
	}
}

// TestTablesSplitAtSpaces has as many words in every line of a table as it has
// columns, in order to be read by awk; without headers only those go.
func TestTablesSplitAtSpaces(t *testing.T) {
	w := newWorld(t).serve(server.Config{})
	w.file("shop.yaml", shop+"---\napiVersion: sightline.dev/v1\nkind: Contract\nmetadata: {namespace: shop, name: checkout}\nspec: {guardPercent: 60}\n")
	w.ok("apply", "-f", "{dir}/shop.yaml")
	w.until("resolve shop/checkout", "eligible")
	w.subscribe("a node\twith\x1b[31m spaces", "checkout.shop")
	w.until("client list -o name", "node")
	for _, line := range []string{"service list", "instance list", "client list", "resolve shop/checkout --via dns", "view list", "contract list"} {
		for _, format := range []string{"table", "wide"} {
			args := append(strings.Fields(line), "-o", format)
			lines := strings.Split(strings.TrimSpace(w.ok(args...)), "\n")
			columns := strings.Fields(lines[0])
			if len(lines) < 2 || strings.ToUpper(lines[0]) != lines[0] {
				t.Fatalf("%s: %q", line, lines)
			}
			for _, l := range lines[1:] {
				if got := strings.Fields(l); len(got) != len(columns) {
					t.Errorf("%s -o %s: %d words under %d columns:\n%s\n%s", line, format, len(got), len(columns), lines[0], l)
				}
			}
			if bare := w.ok(append(args, "--no-headers")...); len(strings.Split(strings.TrimSpace(bare), "\n")) != len(lines)-1 || strings.Contains(bare, columns[0]+" ") {
				t.Errorf("%s --no-headers:\n%s", line, bare)
			}
		}
	}
	if out := w.ok("client", "list", "-o", "wide"); strings.ContainsRune(out, '\x1b') {
		t.Errorf("a client's name steers the terminal: %q", out)
	}
}

func checkEnvelope(t *testing.T, format string, raw []byte, kind string) (items []map[string]any) {
	t.Helper()
	o := object(t, raw)
	if want := []string{"apiVersion", "items", "kind", "warnings"}; !slices.Equal(keys(o), want) {
		t.Errorf("%s: the envelope has %v, want %v", format, keys(o), want)
	}
	if o["apiVersion"] != "cli.sightline.dev/v1" || o["kind"] != kind {
		t.Errorf("%s: apiVersion %v, kind %v, want %s", format, o["apiVersion"], o["kind"], kind)
	}
	list, ok := o["items"].([]any)
	if _, warned := o["warnings"].([]any); !ok || !warned || len(list) == 0 {
		t.Fatalf("%s: items and warnings have to be lists, items not empty: %s", format, raw)
	}
	for _, i := range list {
		items = append(items, i.(map[string]any))
	}
	return items
}

func object(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatalf("not one JSON object: %v\n%s", err, raw)
	}
	return o
}

func yamlToJSON(t *testing.T, text string) []byte {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("not YAML: %v\n%s", err, text)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func keys(o map[string]any) []string {
	var out []string
	for k := range o {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
