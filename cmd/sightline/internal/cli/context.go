package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// target is how to reach one control plane, and as whom: a command-line
// context. dev and demo write theirs, so that a second terminal needs no flags.
type target struct {
	Name        string `json:"-"`
	API         string `json:"api"`
	XDS         string `json:"xds"`
	DNS         string `json:"dns"`
	HTTP        string `json:"http,omitempty"`
	Zone        string `json:"dnsZone,omitempty"` // DNS apex
	TrustDomain string `json:"trustDomain"`
	Region      string `json:"region,omitempty"`
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	Bundle      string `json:"bundle"`
	// Workload's documents, for bootstraps: clients are not operators.
	WorkloadCert string `json:"workloadCert,omitempty"`
	WorkloadKey  string `json:"workloadKey,omitempty"`
}

// where names the API for messages.
func (t target) where() string {
	if t.Name == "" {
		return t.API
	}
	return t.API + " (context " + t.Name + ")"
}

// contextDir is where contexts live: one file each, and `current` names one.
func contextDir() (string, error) {
	base, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the folder for contexts (set HOME or XDG_CONFIG_HOME): %w", err)
	}
	return filepath.Join(base, "sightline", "contexts"), nil
}

// loadTarget returns the context of that name, or the current one.
func loadTarget(name string) (target, error) {
	dir, err := contextDir()
	if err != nil {
		return target{}, err
	}
	if name == "" {
		raw, err := os.ReadFile(filepath.Join(dir, "current"))
		if errors.Is(err, fs.ErrNotExist) {
			return target{}, nil
		} else if err != nil {
			return target{}, err
		}
		name = string(raw)
	}
	raw, err := os.ReadFile(filepath.Join(dir, filepath.Base(name)+".json"))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("there is no context %q; known: %s", name, strings.Join(contextNames(dir), ", "))
		}
		return target{}, &exitError{code: exitUsage, err: err,
			hint: "start `sightline dev`, or give --api, --cert, --key and --bundle"}
	}
	t := target{Name: name}
	if err := json.Unmarshal(raw, &t); err != nil {
		return target{}, fmt.Errorf("context %q is not readable: %w", name, err)
	}
	return t, nil
}

// contextNames lists the contexts there are.
func contextNames(dir string) []string {
	var out []string
	files, _ := filepath.Glob(filepath.Join(dir, "*.json")) // the pattern is well-formed
	for _, f := range files {
		out = append(out, strings.TrimSuffix(filepath.Base(f), ".json"))
	}
	if len(out) == 0 {
		return []string{"none"}
	}
	return out
}

// saveTarget writes a context and makes it the current one. The function that
// it returns takes both back, if they are still ours.
func saveTarget(t target) (undo func(), err error) {
	dir, err := contextDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	raw, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return nil, err
	}
	file, current := filepath.Join(dir, t.Name+".json"), filepath.Join(dir, "current")
	before, _ := os.ReadFile(current) // there may be none
	if err := errors.Join(replaceFile(file, raw), replaceFile(current, []byte(t.Name))); err != nil {
		return nil, err
	}
	return func() {
		if now, _ := os.ReadFile(file); string(now) != string(raw) {
			return // another process of the same kind has taken over
		}
		_ = os.Remove(file)
		if now, _ := os.ReadFile(current); string(now) != t.Name {
			return // another context has been chosen since
		}
		if _, err := os.Stat(filepath.Join(dir, string(before)+".json")); len(before) > 0 && string(before) != t.Name && err == nil {
			_ = replaceFile(current, before)
		} else {
			_ = os.Remove(current)
		}
	}, nil
}

// replaceFile writes a file whole or not at all, also beside another process
// that does the same.
func replaceFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
