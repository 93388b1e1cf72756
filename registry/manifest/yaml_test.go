package manifest_test

import (
	"strings"
	"testing"

	"github.com/sightlinedev/sightline/registry/manifest"
)

// TestYAML writes a document with its keys sorted, and text that would read as
// something else in quotes.
func TestYAML(t *testing.T) {
	got, err := manifest.YAML([]byte(`{"kind": "Service", "items": [{"on": true, "name": "010"}]}`))
	if want := "items:\n    - name: \"010\"\n      \"on\": true\nkind: Service\n"; err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := manifest.YAML([]byte("{")); err == nil || !strings.Contains(err.Error(), "JSON") {
		t.Errorf("got %v for what is not JSON", err)
	}
}

// TestYAMLReadsBack writes a manifest and reads it again.
func TestYAMLReadsBack(t *testing.T) {
	text, err := manifest.YAML([]byte(`{"apiVersion": "sightline.dev/v1", "kind": "Service",
		"metadata": {"namespace": "shop", "name": "checkout"}, "spec": {"ports": [{"name": "grpc", "number": 8080}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := manifest.Parse("f.yaml", text)
	if err != nil || len(objects) != 1 || objects[0].Service.Ports[0].Number != 8080 {
		t.Errorf("got %v, %v from\n%s", objects, err, text)
	}
}
