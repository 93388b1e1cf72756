package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/sightlinedev/sightline/registry"
)

// The prefixes of the keys: one byte, then parts. Numbers are big-endian, so
// that keys sort by them; names end with a NUL, which no name holds.
const (
	prefixAudit      = 'a' // seq
	prefixChange     = 'c' // epoch seq
	prefixDesired    = 'd' // kind namespace name [uid]; the kinds are registry.RowKind
	prefixCheckpoint = 'k' // namespace service
	prefixGap        = 'g' // nothing: the last epoch in which a view was not kept
	prefixLatest     = 'l' // namespace service
	prefixMinute     = 'm' // namespace service seconds
	prefixNumbers    = 'n' // copy
	prefixPrevious   = 'p' // as prefixDesired: the row's previous good value
	prefixTransition = 't' // nanoseconds seq
	prefixView       = 'v' // namespace service epoch seq
	prefixExpiry     = 'x' // nanoseconds when it was superseded, then the view's key
)

func appendName(k []byte, n registry.Name) []byte {
	k = append(append(k, n.Namespace...), 0)
	return append(append(k, n.Service...), 0)
}

// cutName reads a name that appendName wrote and returns what follows it.
func cutName(k []byte) (n registry.Name, rest []byte, ok bool) {
	ns, tail, ok1 := strings.Cut(string(k), "\x00")
	svc, tail, ok2 := strings.Cut(tail, "\x00")
	return registry.Name{Namespace: ns, Service: svc}, []byte(tail), ok1 && ok2
}

func nameKey(prefix byte, n registry.Name) []byte { return appendName([]byte{prefix}, n) }

func rowKey(prefix byte, r registry.RowKey) []byte {
	k := appendName([]byte{prefix, byte(r.Kind)}, r.Name)
	if r.Kind == registry.InstanceRow {
		k = binary.BigEndian.AppendUint64(k, uint64(r.UID))
	}
	return k
}

// parseRowKey reads what rowKey wrote.
func parseRowKey(k []byte) (r registry.RowKey, err error) {
	if len(k) < 2 || k[1] < byte(registry.ServiceRow) || k[1] > byte(registry.CountersRow) {
		return r, fmt.Errorf("key %q is not that of a row", k)
	}
	n, rest, ok := cutName(k[2:])
	r = registry.RowKey{Kind: registry.RowKind(k[1]), Name: n}
	switch {
	case !ok:
		return r, fmt.Errorf("key %q holds no name", k)
	case r.Kind == registry.InstanceRow && len(rest) == 8:
		r.UID = registry.UID(binary.BigEndian.Uint64(rest))
	case r.Kind == registry.InstanceRow || len(rest) != 0:
		return r, fmt.Errorf("key %q has a tail of %d bytes", k, len(rest))
	}
	return r, nil
}

// format is the first byte of every value; a reader refuses any other.
const format = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum covers the key without its prefix byte, so that a value that ended
// up under another row's key is noticed, and a row's previous value keeps its own.
func checksum(key, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(key[1:], castagnoli), castagnoli, payload)
}

// seal wraps a payload as the value of key: format, CRC32C, payload.
func seal(key, payload []byte) []byte {
	v := make([]byte, 0, 5+len(payload))
	v = binary.BigEndian.AppendUint32(append(v, format), checksum(key, payload))
	return append(v, payload...)
}

// unseal checks a value and returns its payload, which aliases it.
func unseal(key, value []byte) ([]byte, error) {
	switch {
	case len(value) < 5:
		return nil, fmt.Errorf("value of %d bytes is cut short", len(value))
	case value[0] != format:
		return nil, fmt.Errorf("format %d is not known; this version reads %d", value[0], format)
	case binary.BigEndian.Uint32(value[1:5]) != checksum(key, value[5:]):
		return nil, errors.New("checksum does not match")
	}
	return value[5:], nil
}

func sealJSON(key []byte, v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return seal(key, payload), nil
}

func unsealJSON(key, value []byte, into any) error {
	payload, err := unseal(key, value)
	if err != nil {
		return err
	}
	return json.Unmarshal(payload, into)
}

// encodeRow returns the row's value under its key.
func encodeRow(key []byte, r registry.Row) ([]byte, error) {
	v, named := content(r)
	if !named {
		return nil, fmt.Errorf("%s: the row's value does not belong under this key", r.Key)
	}
	return sealJSON(key, v)
}

// decodeRow reads the value of a row and checks that it names the same row.
func decodeRow(id registry.RowKey, key, value []byte) (registry.Row, error) {
	r := registry.Row{Key: id}
	var into any
	switch id.Kind {
	case registry.ServiceRow:
		r.Service = new(registry.Service)
		into = r.Service
	case registry.InstanceRow:
		r.Instance = new(registry.Instance)
		into = r.Instance
	case registry.ContractRow, registry.PreviousContractRow:
		r.Contract = new(registry.Contract)
		into = r.Contract
	case registry.ProfileRow:
		r.Profile = new(registry.Profile)
		into = r.Profile
	case registry.CountersRow:
		r.Counters = new(registry.Counters)
		into = r.Counters
	}
	if err := unsealJSON(key, value, into); err != nil {
		return registry.Row{}, err
	}
	if _, named := content(r); !named {
		return registry.Row{}, errors.New("the value names another row")
	}
	return r, nil
}

// content returns the row's value, and whether it is the one that its key names.
func content(r registry.Row) (v any, named bool) {
	k := r.Key
	switch k.Kind {
	case registry.ServiceRow:
		return r.Service, r.Service != nil && r.Service.Name == k.Name
	case registry.InstanceRow:
		return r.Instance, r.Instance != nil && r.Instance.UID == k.UID && r.Instance.Service == k.Name
	case registry.ContractRow, registry.PreviousContractRow:
		return r.Contract, r.Contract != nil && r.Contract.Name == k.Name
	case registry.ProfileRow:
		return r.Profile, r.Profile != nil && r.Profile.Namespace == k.Name.Namespace && r.Profile.Name == k.Name.Service
	case registry.CountersRow:
		return r.Counters, r.Counters != nil && k.Name.IsZero()
	}
	return nil, false
}

// keepsPrevious says whether the store itself keeps the previous good value of
// a row. A contract's is a row of its own, which registry decides on.
func keepsPrevious(k registry.RowKind) bool {
	return k == registry.ServiceRow || k == registry.InstanceRow || k == registry.ProfileRow
}
