package manifest

import (
	"slices"
	"strconv"
	"strings"
)

func contains(list []string, s string) bool { return slices.Contains(list, s) }

// hint names the known word that a wrong one is closest to, or all of them.
func hint(word string, known []string) string {
	best, least := "", 3 // more than two edits is another word
	for _, k := range known {
		if n := edits(strings.ToLower(word), strings.ToLower(k), least); n < least {
			best, least = k, n
		}
	}
	switch {
	case best != "":
		return "; did you mean " + strconv.Quote(best) + "?"
	case len(known) == 0:
		return "; remove it"
	}
	return "; known are " + strings.Join(known, ", ")
}

// edits counts the characters to insert, delete or replace between a and b; it
// may stop counting at limit.
func edits(a, b string, limit int) int {
	if max(len(a)-len(b), len(b)-len(a)) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
