package manifest

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// YAML writes a JSON document as YAML, keys sorted. Commands print with it, so
// that this package stays the only one that knows the YAML library.
func YAML(document []byte) ([]byte, error) {
	var v any
	if err := json.Unmarshal(document, &v); err != nil {
		return nil, fmt.Errorf("not a JSON document: %w", err)
	}
	return yaml.Marshal(v)
}
