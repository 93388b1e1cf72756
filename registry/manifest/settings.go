package manifest

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Setting is one key of a configuration file. A list is joined by commas.
type Setting struct {
	Key, Value string
	Line       int // from 1
}

// Grant lets a caller resolve a callee, as a configuration file writes it.
type Grant struct{ Caller, Callee string }

// Settings reads a configuration file: a mapping whose values are scalars or
// lists of scalars, and under policy.resolve who may resolve whom. Which keys
// there are, only the caller knows. The error gives file, line and column; a
// repeated key is one.
func Settings(file string, data []byte) (settings []Setting, grants []Grant, err error) {
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(root.Content) == 0 {
		return nil, nil, nil
	}
	r := settingsReader{file: file}
	for key, value := range r.pairs(root.Content[0], "the configuration") {
		if key.Value == "policy" {
			grants = r.policy(value)
			continue
		}
		settings = append(settings, Setting{Key: key.Value, Value: r.value(key.Value, value), Line: key.Line})
	}
	return settings, grants, r.err
}

// settingsReader keeps the first problem of a configuration file.
type settingsReader struct {
	file string
	err  error
}

func (r *settingsReader) refuse(n *yaml.Node, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s:%d:%d: %s", r.file, n.Line, n.Column, fmt.Sprintf(format, args...))
	}
}

// pairs yields the keys of a mapping with their values, each key once.
func (r *settingsReader) pairs(n *yaml.Node, where string) func(yield func(key, value *yaml.Node) bool) {
	return func(yield func(key, value *yaml.Node) bool) {
		if n.Kind != yaml.MappingNode {
			r.refuse(n, "%s is not a mapping of keys to values", where)
			return
		}
		seen := map[string]bool{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if seen[key.Value] {
				r.refuse(key, "%q is there twice in %s; remove one", key.Value, where)
				return
			}
			if seen[key.Value] = true; !yield(key, n.Content[i+1]) {
				return
			}
		}
	}
}

func (r *settingsReader) value(key string, n *yaml.Node) string {
	switch n.Kind {
	case yaml.ScalarNode:
		return n.Value
	case yaml.SequenceNode:
		var parts []string
		for _, c := range n.Content {
			if c.Kind != yaml.ScalarNode || strings.Contains(c.Value, ",") {
				r.refuse(c, "%s: an element has to be a word without commas", key)
			}
			parts = append(parts, c.Value)
		}
		return strings.Join(parts, ",")
	}
	r.refuse(n, "%s has to be a value or a list of values", key)
	return ""
}

// policy reads resolve: [{caller, callee}].
func (r *settingsReader) policy(n *yaml.Node) (grants []Grant) {
	for key, value := range r.pairs(n, "policy") {
		if key.Value != "resolve" || value.Kind != yaml.SequenceNode {
			r.refuse(key, "policy has only resolve, a list of {caller, callee}")
			return nil
		}
		for _, item := range value.Content {
			var g Grant
			for key, value := range r.pairs(item, "policy.resolve") {
				switch key.Value {
				case "caller":
					g.Caller = r.value("caller", value)
				case "callee":
					g.Callee = r.value("callee", value)
				default:
					r.refuse(key, "unknown key %q in policy.resolve; known are caller, callee", key.Value)
				}
			}
			grants = append(grants, g)
		}
	}
	return grants
}
