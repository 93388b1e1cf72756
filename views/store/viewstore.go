package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// Stored is one published view as it was kept.
type Stored struct {
	Name    registry.Name
	Version views.Version // of the publication
	At      time.Time
	View    *views.View // nil: the service was deleted at this version
}

// Latest is the newest stored version of a service: a rebuilt view with the
// same hashes keeps its versions.
type Latest struct {
	Name         registry.Name
	Version      views.Version // of the publication
	Endpoint     views.Version
	Config       views.Version
	EndpointHash [32]byte
	ConfigHash   [32]byte
	Deleted      bool
}

// Change is one entry of the ring of recent changes.
type Change struct {
	Version views.Version
	Name    registry.Name
	Lane    views.Lane
	Kinds   views.Kinds
	Deleted bool
	At      time.Time
}

func appendVersion(k []byte, v views.Version) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(k, v.Epoch), v.Seq)
}

func cutVersion(k []byte) (views.Version, bool) {
	if len(k) != 16 {
		return views.Version{}, false
	}
	return views.Version{Epoch: binary.BigEndian.Uint64(k), Seq: binary.BigEndian.Uint64(k[8:])}, true
}

func viewKey(n registry.Name, v views.Version) []byte {
	return appendVersion(nameKey(prefixView, n), v)
}

func expiryKey(at time.Time, viewKey []byte) []byte {
	return append(binary.BigEndian.AppendUint64([]byte{prefixExpiry}, uint64(at.UnixNano())), viewKey...)
}

// PutView keeps a publication: the view under its version, its hashes as the
// newest of the service, and an entry of the ring. It never waits; what does
// not fit the queue is dropped and counted.
func (s *Store) PutView(p views.Publication) {
	at := time.Now()
	cost := int64(512)
	if p.New != nil {
		if !p.New.PublishedAt.IsZero() {
			at = p.New.PublishedAt
		}
		cost += 64 * int64(len(p.New.Members)) // of the queue: members are shared with the snapshot
	}
	s.queue(Views, cost, func(b *pebble.Batch) error { return addView(b, p, at) })
}

func addView(b *pebble.Batch, p views.Publication, at time.Time) error {
	key := viewKey(p.Name, p.Version)
	latest := Latest{Name: p.Name, Version: p.Version, Deleted: p.New == nil}
	if v := p.New; v != nil {
		latest.Endpoint, latest.Config = v.Endpoint, v.Config
		latest.EndpointHash, latest.ConfigHash = v.EndpointHash, v.ConfigHash
	}
	change := Change{Version: p.Version, Name: p.Name, Lane: p.Lane, Kinds: p.Kinds, Deleted: latest.Deleted, At: at}
	err := errors.Join(
		setJSON(b, key, Stored{Name: p.Name, Version: p.Version, At: at, View: p.New}),
		setJSON(b, nameKey(prefixLatest, p.Name), latest),
		setJSON(b, appendVersion([]byte{prefixChange}, p.Version), change),
	)
	if p.Old != nil {
		err = errors.Join(err, b.Set(expiryKey(at, viewKey(p.Name, p.Old.Version())), nil, nil))
	}
	if latest.Deleted {
		err = errors.Join(err, b.Set(expiryKey(at, key), nil, nil))
	}
	return err
}

func setJSON(b *pebble.Batch, key []byte, v any) error {
	value, err := sealJSON(key, v)
	if err != nil {
		return err
	}
	return b.Set(key, value, nil)
}

// ViewAt returns the service's view at a version: the newest stored one that
// is not above it. ok is false when the store does not reach back that far or
// never had it.
func (s *Store) ViewAt(ctx context.Context, n registry.Name, v views.Version) (found Stored, ok bool, err error) {
	opts := &pebble.IterOptions{
		LowerBound: nameKey(prefixView, n),
		UpperBound: append(viewKey(n, v), 0),
	}
	var decodeErr error
	err = s.scan(ctx, opts, true, func(key, value []byte) bool {
		decodeErr = unsealJSON(key, value, &found)
		ok = decodeErr == nil
		return false
	})
	if decodeErr != nil {
		err = fmt.Errorf("stored view of %s at or before %s cannot be read: %w", n, v, decodeErr)
	}
	return found, ok, err
}

// LatestViews returns the newest stored version of every service, deleted ones
// of the last day included. Damaged entries are left out and counted; their
// services are stamped anew.
func (s *Store) LatestViews(ctx context.Context) (latest []Latest, damaged int, err error) {
	err = s.scan(ctx, prefixRange(prefixLatest), false, func(key, value []byte) bool {
		var l Latest
		if unsealJSON(key, value, &l) != nil {
			damaged++
			return true
		}
		latest = append(latest, l)
		return true
	})
	return latest, damaged, err
}

// ChangesSince returns the changes above a version, oldest first, and whether
// they are all: false when the ring does not reach back to it, or has a hole.
func (s *Store) ChangesSince(ctx context.Context, v views.Version) (changes []Change, complete bool, err error) {
	err = s.scan(ctx, prefixRange(prefixChange), true, func(key, value []byte) bool {
		at, ok := cutVersion(key[1:])
		var c Change
		if !ok || unsealJSON(key, value, &c) != nil {
			return false
		}
		if !v.Less(at) {
			complete = true
			return false
		}
		changes = append(changes, c)
		return true
	})
	for i, j := 0, len(changes)-1; i < j; i, j = i+1, j-1 {
		changes[i], changes[j] = changes[j], changes[i]
	}
	return changes, complete, err
}

// DropViews deletes the view store and the ring. Nothing decides by them, so
// it may be called at any moment; the next start stamps every service anew.
func (s *Store) DropViews() {
	s.queue(Views, 64, func(b *pebble.Batch) error {
		var err error
		for _, p := range []byte{prefixView, prefixLatest, prefixChange, prefixExpiry} {
			err = errors.Join(err, b.DeleteRange([]byte{p}, []byte{p + 1}, nil))
		}
		return err
	})
}

// highestVersion is what the view store knows of published versions.
func highestVersion(r pebble.Reader) (epoch, seq uint64, err error) {
	it, err := r.NewIter(prefixRange(prefixChange))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		if v, ok := cutVersion(it.Key()[1:]); ok {
			epoch, seq = max(epoch, v.Epoch), max(seq, v.Seq)
		}
	}
	// What was not written behind before a crash is covered by a block's room.
	return epoch, seq + seqBlock, it.Error()
}
