package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxFileSize is the largest file that is read, in bytes.
const MaxFileSize = 1 << 20

// APIVersion is the one version of manifests.
const APIVersion = "sightline.dev/v1"

// Parse reads a file's objects, in order. file names it in errors. The error is
// Problems, and then there are no objects; a file without documents has no
// objects and no error. The rows' Source, Proof and Revision are left for the
// caller to fill.
func Parse(file string, data []byte) ([]Object, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	src := newSource(file, nil)
	if len(data) > MaxFileSize {
		return nil, Problems{src.problem(1, 1, TooLarge, "the file has %d bytes, the limit is %d; split it", len(data), MaxFileSize)}
	}
	src = newSource(file, data)
	if problem, bad := checkText(src); bad {
		return nil, capped(src, Problems{problem})
	}
	var (
		objects  []Object
		problems Problems
		places   = make(map[string]int) // line of each object
		reader   = &lineReader{rest: data}
		decoder  = yaml.NewDecoder(reader)
	)
	for len(problems) < maxCollected {
		var root yaml.Node
		err := decoder.Decode(&root)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			problems = append(problems, syntaxProblem(src, err, reader.lines))
			break
		}
		d := &document{src: src, at: make(map[string]*yaml.Node)}
		if o, ok := d.object(&root, places); ok {
			objects = append(objects, o)
		}
		problems = append(problems, d.problems...)
	}
	if len(problems) > 0 {
		return nil, capped(src, problems)
	}
	return objects, nil
}

// maxCollected is where a file, and a document, stops being read: nobody needs
// more, and a hostile file could hold half a million.
const maxCollected = 1000

// capped sorts problems by place, cuts a long list, and shows what is left.
func capped(src *source, ps Problems) Problems {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if rest := len(ps) - MaxProblems; rest > 0 {
		next := ps[MaxProblems]
		more := src.problem(next.Line, next.Column, MoreProblems, "at least %d more problems from here on; fix those above first", rest)
		ps = append(ps[:MaxProblems:MaxProblems], more)
	}
	for i, p := range ps {
		ps[i] = src.show(p)
	}
	return ps
}

// checkText finds the first byte that is not UTF-8, or a character that YAML
// does not allow in a file, before a parser sees it.
func checkText(src *source) (Problem, bool) {
	for n, line := range src.lines {
		column := 0
		for i, r := range line {
			column++
			if _, size := utf8.DecodeRuneInString(line[i:]); r == utf8.RuneError && size == 1 {
				return src.problem(n+1, column, BadText, "byte %#02x is not valid UTF-8; save the file as UTF-8", line[i]), true
			}
			if isControl(r) || r == '\r' && i+1 < len(line) {
				return src.problem(n+1, column, BadText, "the control character %U is not allowed; remove it, or write it as an escape in quotes", r), true
			}
		}
	}
	return Problem{}, false
}

// isControl reports what may not stand in a file. Among it are YAML's unusual
// line breaks, at which an editor would count lines in another way.
func isControl(r rune) bool {
	switch {
	case r == '\t' || r == '\r':
		return false
	case r == '\u2028' || r == '\u2029':
		return true
	}
	return r < ' ' || r >= 0x7f && r < 0xa0
}

// lineReader hands out one line at a time, so that the number of lines that the
// parser took tells how far it came.
type lineReader struct {
	rest  []byte
	lines int
	mid   bool // the line handed out last is not complete
}

// Read copies the next line, or a part of it.
func (r *lineReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := len(r.rest)
	if end := bytes.IndexByte(r.rest, '\n'); end >= 0 {
		n = end + 1
	}
	if !r.mid {
		r.lines++
	}
	copied := copy(p, r.rest[:n])
	r.rest, r.mid = r.rest[copied:], copied < n
	return copied, nil
}

// syntaxProblem places the parser's error. The parser names the line where the
// construct begins that it could not finish, which may be far above (and counts
// from 0 there); such an error is placed at the last line that it took. Where
// it names the line of one character or one quoted text, that is the place.
func syntaxProblem(src *source, err error, reached int) Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := max(reached, 1)
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		number, what, _ := strings.Cut(rest, ": ")
		text = what
		if n, err := strconv.Atoi(number); err == nil && !strings.HasPrefix(what, "did not find expected") {
			line = n
		}
	}
	line = min(max(line, 1), len(src.lines))
	indent := len(src.lines[line-1]) - len(strings.TrimLeft(src.lines[line-1], " \t"))
	return src.problem(line, indent+1, BadSyntax, "this is not YAML: %s", text)
}
