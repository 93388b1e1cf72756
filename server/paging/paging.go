// Package paging cuts the lists of the API into pages.
//
// A page token is the key of the last row given, bound to the list and its
// filter: rows that come and go between two pages neither repeat nor hide
// others. The package is pure and keeps nothing between two calls.
package paging

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/sightlinedev/sightline/server/status"
)

// Keyed is a row with the key that orders its list. Keys of a list differ.
type Keyed[T any] struct {
	Key string
	Row T
}

// Sizes bound a page, in rows.
type Sizes struct {
	Default int // where none is asked for
	Most    int
}

// Of is the size of a page for which so many rows were asked.
func (s Sizes) Of(asked int32) int {
	if asked <= 0 {
		return max(s.Default, 1)
	}
	return min(int(asked), max(s.Most, 1))
}

// Cut returns one page of the rows that a list may show, in the order of their
// keys, and the token of the page after it; empty: it was the last. list names
// the list with its filter. The error is the status of a token of another list.
func Cut[T any](rows []Keyed[T], list, token string, size int) (page []T, next string, err error) {
	slices.SortFunc(rows, func(a, b Keyed[T]) int { return strings.Compare(a.Key, b.Key) })
	after, err := After(list, token)
	if err != nil {
		return nil, "", err
	}
	from, found := slices.BinarySearchFunc(rows, after, func(r Keyed[T], key string) int { return strings.Compare(r.Key, key) })
	if found && token != "" {
		from++
	}
	to := min(from+size, len(rows))
	for _, r := range rows[from:to] {
		page = append(page, r.Row)
	}
	if to < len(rows) {
		next = Token(list, rows[to-1].Key)
	}
	return page, next, nil
}

// Token is the page token that After reads.
func Token(list, key string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(list + "\x00" + key))
}

// After is the key of the last row that was given before a page; empty for
// the first page. The error is the status of a token of another list.
func After(list, token string) (key string, err error) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	key, ok := strings.CutPrefix(string(raw), list+"\x00")
	if err != nil || !ok {
		return "", status.Errorf(status.InvalidPageToken, "page_token was not given for this list and filter")
	}
	return key, nil
}
