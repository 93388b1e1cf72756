package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views/store"
)

// commitRows is how many rows one synced commit holds.
const commitRows = 100

// durableCommits compares synced commits through the store with plain Pebble
// batches of the same number of keys, of the same sizes, on the same disk.
func durableCommits(ctx context.Context, s settings, r *report) error {
	rounds, commits := 7, 400
	if s.short {
		rounds, commits = 3, 100
	}
	if s.rounds > 0 {
		rounds = s.rounds
	}
	dir, err := os.MkdirTemp("", "sightline-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	keyBytes, valueBytes, err := rowSizes(ctx, filepath.Join(dir, "sizes"))
	if err != nil {
		return err
	}
	r.say("%d rows a commit, keys of %d bytes and values of %d", commitRows, keyBytes, valueBytes)
	st, _, err := store.Open(store.Config{Dir: filepath.Join(dir, "ours"), Now: time.Now()})
	if err != nil {
		return err
	}
	defer st.Close()
	db, err := pebble.Open(filepath.Join(dir, "plain"), &pebble.Options{MemTableSize: 4 << 20, Logger: silent{}})
	if err != nil {
		return err
	}
	defer db.Close()
	var ours, plain []float64
	for round := range rounds {
		a, err := timed(commits, func(n int) error { return st.Commit(ctx, commitOf(round*commits+n), nil) })
		if err != nil {
			return err
		}
		b, err := timed(commits, func(n int) error { return plainCommit(db, round*commits+n, keyBytes, valueBytes) })
		if err != nil {
			return err
		}
		ours, plain = append(ours, a), append(plain, b)
		r.say("round %d: %.0f us a commit, plain Pebble %.0f us", round+1, a, b)
	}
	r.against("commit", "us", ours, "pebble", plain)
	return nil
}

// timed returns the mean time of n calls, in microseconds.
func timed(n int, do func(int) error) (float64, error) {
	began := time.Now()
	for i := range n {
		if err := do(i); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(began)) / float64(time.Microsecond) / float64(n), nil
}

// commitOf makes the rows of the n-th commit: new instances.
func commitOf(n int) []registry.Row {
	rows := make([]registry.Row, commitRows)
	for i := range rows {
		number := n*commitRows + i + 1
		s := number % 450
		in := &registry.Instance{
			UID: registry.UID(number), Service: serviceName(s), Label: label(number), Identity: serviceIdentity(s),
			Endpoint: registry.Endpoint{Addr: addressOf(number)}, Region: "local", Zone: "zone-a", Source: "api", Revision: uint64(n + 1),
		}
		rows[i] = registry.Row{Key: registry.RowKey{Kind: registry.InstanceRow, Name: in.Service, UID: in.UID}, Instance: in}
	}
	return rows
}

func plainCommit(db *pebble.DB, n, keyBytes, valueBytes int) error {
	b := db.NewBatch()
	defer b.Close()
	value := bytes.Repeat([]byte{'v'}, valueBytes)
	for i := range commitRows {
		key := make([]byte, keyBytes)
		binary.BigEndian.PutUint64(key[keyBytes-8:], uint64(n*commitRows+i))
		if err := b.Set(key, value, nil); err != nil {
			return err
		}
	}
	return b.Commit(pebble.Sync)
}

// rowSizes finds how long the keys and values of instance rows are in a store.
func rowSizes(ctx context.Context, dir string) (keyBytes, valueBytes int, err error) {
	st, _, err := store.Open(store.Config{Dir: dir, Now: time.Now()})
	if err != nil {
		return 0, 0, err
	}
	err = st.Commit(ctx, commitOf(1000), nil)
	if closing := st.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return 0, 0, err
	}
	db, err := pebble.Open(dir, &pebble.Options{ReadOnly: true, Logger: silent{}})
	if err != nil {
		return 0, 0, err
	}
	defer db.Close()
	it, err := db.NewIter(nil)
	if err != nil {
		return 0, 0, err
	}
	defer it.Close()
	rows := 0
	for it.First(); it.Valid(); it.Next() {
		// The rows themselves; what the store keeps beside them is its own cost.
		if bytes.HasPrefix(it.Key(), []byte("d")) && bytes.Contains(it.Key(), []byte(namespace+"\x00")) {
			rows, keyBytes, valueBytes = rows+1, keyBytes+len(it.Key()), valueBytes+len(it.Value())
		}
	}
	if rows != commitRows {
		return 0, 0, fmt.Errorf("%d rows in the store, %d were written", rows, commitRows)
	}
	return keyBytes / rows, valueBytes / rows, it.Error()
}

// silent drops what Pebble says.
type silent struct{}

// Infof implements pebble.Logger.
func (silent) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (silent) Errorf(string, ...any) {}

// Fatalf implements pebble.Logger, which expects the process to end.
func (silent) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
