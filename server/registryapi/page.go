package registryapi

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/sightlinedev/sightline/server/status"
)

// keyed is a row with the key that orders its list.
type keyed[T any] struct {
	key string
	row T
}

// page cuts one page out of the rows that a list may show. A token is the key
// of the last row given, bound to the list's filter, so that rows that come
// and go between two pages neither repeat nor hide others.
func page[T any](rows []keyed[T], filter, token string, size, most int) (out []T, next string, err error) {
	slices.SortFunc(rows, func(a, b keyed[T]) int { return strings.Compare(a.key, b.key) })
	after := ""
	if token != "" {
		raw, err := base64.RawURLEncoding.DecodeString(token)
		key, ok := strings.CutPrefix(string(raw), filter+"\x00")
		if err != nil || !ok {
			return nil, "", status.Errorf(status.InvalidPageToken, "page_token %q was not given for this list", token)
		}
		after = key
	}
	from, found := slices.BinarySearchFunc(rows, after, func(r keyed[T], key string) int { return strings.Compare(r.key, key) })
	if found && token != "" {
		from++
	}
	to := min(from+min(max(size, 1), most), len(rows))
	for _, r := range rows[from:to] {
		out = append(out, r.row)
	}
	if to < len(rows) {
		next = base64.RawURLEncoding.EncodeToString([]byte(filter + "\x00" + rows[to-1].key))
	}
	return out, next, nil
}

// pageSize applies the default to a size that is not given.
func (s *Server) pageSize(asked int32) int {
	if asked <= 0 {
		return s.cfg.API.DefaultPageSize
	}
	return int(asked)
}
