package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

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

// Settings reads a flat configuration file: scalars by key, and under `policy`
// who may resolve whom. The error gives file and line; an unknown or repeated
// key is one, so is a value that is not a scalar.
func Settings(file string, data []byte) (values map[string]string, grants []Grant, err error) {
	var s struct {
		Policy struct {
			Resolve []Grant `yaml:"resolve"`
		} `yaml:"policy"`
		Values map[string]string `yaml:",inline"`
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&s); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("%s: %w", file, err)
	}
	return s.Values, s.Policy.Resolve, nil
}

// Grant lets a caller resolve a callee, as a configuration file writes it.
type Grant struct {
	Caller string `yaml:"caller"`
	Callee string `yaml:"callee"`
}
