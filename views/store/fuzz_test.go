package store

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/sightlinedev/sightline/registry"
)

// FuzzRow is B9: no bytes under any key make a start panic, and what decodes
// is the row that its key names.
func FuzzRow(f *testing.F) {
	for _, r := range []registry.Row{
		serviceRow(checkout, 1), instanceRow(checkout, 7, 2), profileRow(checkout), countersRow(1, 2),
		contractRow(registry.ContractRow, checkout, 5, 3), contractRow(registry.PreviousContractRow, checkout, 5, 3),
	} {
		key := rowKey(prefixDesired, r.Key)
		value, err := encodeRow(key, r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(key, value, false)
		f.Add(key, value[5:], true)
	}
	f.Add([]byte("d"), []byte{format}, false)
	f.Fuzz(func(t *testing.T, key, value []byte, sealIt bool) {
		if len(key) == 0 {
			return
		}
		if sealIt {
			value = seal(key, value)
		}
		id, err := parseRowKey(key)
		if err != nil {
			return
		}
		if !slices.Equal(rowKey(key[0], id), key) {
			t.Errorf("key %q is read as %s", key, id)
		}
		if r, err := decodeRow(id, key, value); err == nil {
			if _, err := encodeRow(key, r); err != nil || r.Key != id {
				t.Errorf("%s: decoded and not encodable: %v", id, err)
			}
		}
	})
}

// TestFlippedBits is F6: a bit that flips anywhere in any file is noticed: the
// store opens with rows as they were written, fewer of them only with an
// alarm or where a log's tail was torn, or it says why it does not open.
func TestFlippedBits(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s, _, err := Open(crashConfig(mem))
	must(t, err)
	written := make(map[string]bool)
	for i := range 40 {
		rows := batchOf(i%batches, uint64(i+1))
		commit(t, s, rows...)
		for _, r := range rows {
			if !r.Delete {
				written[text(t, []registry.Row{r})] = true
			}
		}
	}
	dead := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	must(t, s.Close())
	names, err := dead.List("data")
	must(t, err)
	rng := rand.New(rand.NewPCG(6, 6))
	opened, refused := 0, 0
	for _, name := range names {
		info, err := dead.Stat("data/" + name)
		must(t, err)
		for off := int64(0); off < info.Size(); off += max(512, info.Size()/12) {
			fs := dead.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
			flip(t, fs, "data/"+name, min(off+rng.Int64N(512), info.Size()-1), byte(1<<rng.IntN(8)))
			s, l, err := Open(crashConfig(fs))
			if err != nil {
				refused++
				if !strings.Contains(err.Error(), "data cannot be") {
					t.Errorf("%s at %d: %v", name, off, err)
				}
				continue
			}
			opened++
			for _, r := range l.Rows {
				if one := text(t, []registry.Row{r}); !written[one] {
					t.Errorf("%s at %d: a row that nobody wrote: %s", name, off, one)
				}
			}
			if err := s.Close(); err != nil {
				t.Logf("%s at %d: close: %v", name, off, err)
			}
		}
	}
	t.Logf("%d flips: %d opened, %d refused", opened+refused, opened, refused)
	if opened == 0 || refused == 0 {
		t.Errorf("%d opened, %d refused: the flips do not reach what they should", opened, refused)
	}
}

func flip(t *testing.T, fs *vfs.MemFS, name string, at int64, mask byte) {
	t.Helper()
	f, err := fs.OpenReadWrite(name, "test")
	must(t, err)
	one := make([]byte, 1)
	_, err = f.ReadAt(one, at)
	must(t, err)
	one[0] ^= mask
	_, err = f.WriteAt(one, at)
	must(t, err)
	must(t, f.Close())
}
