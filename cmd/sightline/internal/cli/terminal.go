package cli

import (
	"io"
	"os"
)

// terminal reports whether a person is likely to look at what is written to w.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// colour reports whether w may be given colours (no-color.org).
func colour(w io.Writer) bool { return terminal(w) && os.Getenv("NO_COLOR") == "" }
