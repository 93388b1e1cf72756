package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
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

// latest is the newest stored version of a service.
type latest struct {
	Version views.Version // of the publication
	Deleted bool
	Stored  views.Stored
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
// newest of the service, and an entry of the ring. A view that kept the version
// of an earlier start is here already. It never waits; what does not fit the
// queue is dropped and counted.
func (s *Store) PutView(p views.Publication) {
	if p.Version.Epoch < s.epoch {
		return
	}
	at := time.Now()
	cost := int64(512)
	if p.New != nil {
		if !p.New.PublishedAt.IsZero() {
			at = p.New.PublishedAt
		}
		cost += 64 * int64(len(p.New.Members)) // of the queue: members are shared with the snapshot
	}
	s.queue(Views, cost, func(db pebble.Reader, b *pebble.Batch) error { return addView(db, b, p, at) })
}

func addView(db pebble.Reader, b *pebble.Batch, p views.Publication, at time.Time) error {
	key, latestKey := viewKey(p.Name, p.Version), nameKey(prefixLatest, p.Name)
	l := latest{Version: p.Version, Deleted: p.New == nil}
	if v := p.New; v != nil {
		l.Stored = views.Stored{Endpoint: v.Endpoint, Config: v.Config, EndpointHash: v.EndpointHash, ConfigHash: v.ConfigHash}
	}
	change := views.Change{Version: p.Version, Name: p.Name, Deleted: l.Deleted, Lane: p.Lane, Kinds: p.Kinds}
	err := supersede(db, b, p, at)
	if l.Deleted {
		err = errors.Join(err, b.Set(expiryKey(at, key), nil, nil))
	}
	return errors.Join(err,
		setJSON(b, key, Stored{Name: p.Name, Version: p.Version, At: at, View: p.New}),
		setJSON(b, latestKey, l),
		setJSON(b, appendVersion([]byte{prefixChange}, p.Version), change),
	)
}

// supersede marks the view that a publication replaces as due one day. After a
// start the replaced one is known to the disk alone.
func supersede(db pebble.Reader, b *pebble.Batch, p views.Publication, at time.Time) error {
	if p.Old != nil {
		return b.Set(expiryKey(at, viewKey(p.Name, p.Old.Version())), nil, nil)
	}
	key := nameKey(prefixLatest, p.Name)
	value, err := getCopy(db, key)
	var l latest
	if err != nil || value == nil || unsealJSON(key, value, &l) != nil {
		return err
	}
	return b.Set(expiryKey(at, viewKey(p.Name, l.Version)), nil, nil)
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

// LatestViews returns what the Publisher starts from: the newest stored
// versions and hashes of every service that was not deleted. Damaged entries
// are left out and counted; their services are stamped anew. So are those of an
// epoch in which a view was dropped, which is why they come without hashes: a
// view that is equal to one stored before the dropped one must not take its
// version, which callers have left behind.
func (s *Store) LatestViews(ctx context.Context) (newest map[registry.Name]views.Stored, damaged int, err error) {
	newest = make(map[registry.Name]views.Stored)
	var gap uint64
	err = s.scan(ctx, prefixRange(prefixGap), false, func(key, value []byte) bool {
		if unsealJSON(key, value, &gap) != nil {
			gap = s.epoch // which epoch it was cannot be told
		}
		return true
	})
	if err != nil {
		return newest, 0, err
	}
	err = s.scan(ctx, prefixRange(prefixLatest), false, func(key, value []byte) bool {
		var l latest
		n, _, ok := cutName(key[1:])
		switch {
		case !ok || unsealJSON(key, value, &l) != nil:
			damaged++
		case !l.Deleted && l.Version.Epoch <= gap:
			newest[n] = views.Stored{Endpoint: l.Stored.Endpoint, Config: l.Stored.Config}
		case !l.Deleted:
			newest[n] = l.Stored
		}
		return true
	})
	return newest, damaged, err
}

// RecentChanges returns the ring, oldest first: the Publisher's start.
func (s *Store) RecentChanges(ctx context.Context) ([]views.Change, error) {
	changes, _, err := s.ChangesSince(ctx, views.Version{})
	return changes, err
}

// ChangesSince returns the changes above a version, oldest first, and whether
// they are all: false when the ring does not reach back to it, or has a hole.
func (s *Store) ChangesSince(ctx context.Context, v views.Version) (changes []views.Change, complete bool, err error) {
	err = s.scan(ctx, prefixRange(prefixChange), true, func(key, value []byte) bool {
		at, ok := cutVersion(key[1:])
		var c views.Change
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
	slices.Reverse(changes)
	return changes, complete, err
}

// DropViews deletes the view store and the ring. Nothing decides by them, so
// it may be called at any moment; the next start stamps every service anew.
func (s *Store) DropViews() {
	s.queue(Views, 64, func(_ pebble.Reader, b *pebble.Batch) error {
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
