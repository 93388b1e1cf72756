package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sightlinedev/sightline/registry/manifest"
)

// readManifests reads every file, and reports the problems of all of them.
func (a *app) readManifests(paths []string) (objects []manifest.Object, err error) {
	files, err := expand(paths)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, file := range files {
		data, err := a.readFile(file)
		if err != nil {
			return nil, err
		}
		got, err := manifest.Parse(file, data)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		objects = append(objects, got...)
	}
	if problems = append(problems, repeated(objects)...); len(problems) > 0 {
		return nil, &exitError{code: exitFailure, err: errors.Join(problems...), hint: nothingChanged}
	}
	if len(objects) == 0 {
		return nil, usagef("%s declares no object", strings.Join(paths, ", "))
	}
	return objects, nil
}

// readFile reads a file, or standard input, up to what a manifest may have.
func (a *app) readFile(file string) ([]byte, error) {
	in := a.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, cannotRead(err)
		}
		defer f.Close()
		in = f
	}
	return io.ReadAll(io.LimitReader(in, manifest.MaxFileSize+1))
}

// cannotRead is a mistake in the command line: commands whose exit code 1 says
// that something differs must not say so of a file that is not there.
func cannotRead(err error) error { return usagef("%w", err) }

// repeated finds objects that two files declare; within a file the parser does.
func repeated(objects []manifest.Object) (problems []error) {
	first := map[string]manifest.Object{}
	for _, o := range objects {
		name := objectName(o)
		if was, ok := first[name]; ok && !strings.HasSuffix(name, "/") {
			problems = append(problems, fmt.Errorf("%s:%d: %s is already declared at %s:%d; remove one", o.File, o.Line, name, was.File, was.Line))
			continue
		}
		first[name] = o
	}
	return problems
}

// expand turns folders into the manifest files in them, sorted, as a file
// source reads a folder: no folders within, nothing that begins with a dot.
func expand(paths []string) (files []string, err error) {
	for _, p := range paths {
		if p == "-" {
			files = append(files, p)
			continue
		}
		st, err := os.Stat(p)
		if err != nil {
			return nil, cannotRead(err)
		}
		if !st.IsDir() {
			files = append(files, p)
			continue
		}
		entries, err := os.ReadDir(p)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			ext := filepath.Ext(e.Name())
			if !strings.HasPrefix(e.Name(), ".") && !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
				files = append(files, filepath.Join(p, e.Name()))
			}
		}
	}
	return files, nil
}
