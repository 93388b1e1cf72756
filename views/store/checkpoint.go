package store

import (
	"context"

	"github.com/cockroachdb/pebble/v2"

	"github.com/sightlinedev/sightline/registry"
)

// SaveCheckpoint writes a service's evaluator memory behind, without sync; nil
// deletes it. The bytes are the evaluator's own; the zero name is for what
// spans services. It never waits. The caller must not change data afterwards.
func (s *Store) SaveCheckpoint(n registry.Name, data []byte) {
	s.queue(Checkpoints, int64(64+len(data)), func(_ pebble.Reader, b *pebble.Batch) error {
		key := nameKey(prefixCheckpoint, n)
		if data == nil {
			return b.Delete(key, nil)
		}
		return b.Set(key, seal(key, data), nil)
	})
}

// LoadCheckpoints returns every service's checkpoint. Damaged ones are left
// out and counted: losing one lowers confidence and nothing else.
func (s *Store) LoadCheckpoints(ctx context.Context) (saved map[registry.Name][]byte, damaged int, err error) {
	saved = make(map[registry.Name][]byte)
	err = s.scan(ctx, prefixRange(prefixCheckpoint), false, func(key, value []byte) bool {
		n, _, ok := cutName(key[1:])
		data, sealErr := unseal(key, value)
		if !ok || sealErr != nil {
			damaged++
			return true
		}
		saved[n] = append([]byte{}, data...)
		return true
	})
	return saved, damaged, err
}
