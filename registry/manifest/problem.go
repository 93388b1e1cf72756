package manifest

import (
	"fmt"
	"strings"
	"unicode"
)

// Code identifies a kind of problem. Codes are never renumbered or reused.
type Code uint16

// The codes of manifests.
const (
	TooLarge      Code = 1201 // the file is larger than MaxFileSize
	BadText       Code = 1202 // not UTF-8, or a control character
	UnknownKey    Code = 1203
	RepeatedKey   Code = 1204 // or two ways of saying one thing
	BadSyntax     Code = 1205 // not YAML
	WrongType     Code = 1206
	BadValue      Code = 1207 // the form or the rule of a field is broken
	MissingKey    Code = 1208
	UnknownKind   Code = 1209 // apiVersion or kind
	NotSupported  Code = 1210 // a kind of a later version
	RefusedKey    Code = 1211 // belongs elsewhere, or is set by the registry
	RefusedYAML   Code = 1212 // anchors, aliases, tags, merge keys
	RepeatedThing Code = 1213 // the same object twice in a file
	MoreProblems  Code = 1214 // only the first MaxProblems are listed
)

// String is the written form, SL1203.
func (c Code) String() string { return fmt.Sprintf("SL%04d", uint16(c)) }

// MaxProblems is how many problems of one file are listed.
const MaxProblems = 20

// Problem is one thing that is wrong, and where.
type Problem struct {
	File    string
	Line    int // from 1
	Column  int // in characters, from 1
	Code    Code
	Message string // what is wrong, why, and what to do
	Source  string // the line of the file, or the part of it around the column
	caret   string // as wide as what stands before the column in Source
}

// Error is the problem as a person reads it: place, code and message, then the
// line of the file with a caret under the place.
func (p Problem) Error() string {
	head := fmt.Sprintf("%s:%d:%d: %s %s", p.File, p.Line, p.Column, p.Code, p.Message)
	if strings.TrimSpace(p.Source) == "" {
		return head
	}
	return head + "\n  " + p.Source + "\n  " + p.caret + "^"
}

// Problems is everything that is wrong with a file, by place. It is the error
// that Parse returns.
type Problems []Problem

// Error lists the problems one below the other.
func (ps Problems) Error() string {
	parts := make([]string, len(ps))
	for i, p := range ps {
		parts[i] = p.Error()
	}
	return strings.Join(parts, "\n")
}

// source is the text of a file by lines.
type source struct {
	file  string
	lines []string
}

func newSource(file string, data []byte) *source {
	return &source{file: file, lines: strings.Split(string(data), "\n")}
}

const (
	maxShown   = 60  // characters of a long line that are shown on each side
	maxMessage = 500 // characters; a value that a message quotes may be a whole file
)

func (s *source) problem(line, column int, code Code, format string, args ...any) Problem {
	text := fmt.Sprintf(format, args...)
	if r := []rune(text); len(r) > maxMessage {
		text = string(r[:maxMessage]) + "…"
	}
	return Problem{File: s.file, Line: line, Column: column, Code: code, Message: text}
}

// show adds the line of the file. It is done for the problems that are listed
// and no others: a long line may hold very many.
func (s *source) show(p Problem) Problem {
	if p.Line < 1 || p.Line > len(s.lines) {
		return p
	}
	text := []rune(strings.TrimSuffix(s.lines[p.Line-1], "\r"))
	at := min(max(p.Column-1, 0), len(text))
	from, to := max(at-maxShown, 0), min(at+maxShown, len(text))
	p.Source, p.caret = shown(text[from:to]), blank(text[from:at])
	if from > 0 {
		p.Source, p.caret = "…"+p.Source, " "+p.caret
	}
	if to < len(text) {
		p.Source += "…"
	}
	return p
}

// shown keeps a file from writing control sequences to a terminal.
func shown(text []rune) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, string(text))
}

// blank keeps tabs, so that the caret stays under its character.
func blank(text []rune) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, string(text))
}
