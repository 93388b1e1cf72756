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

// Kind is the kind of a desired row.
type Kind uint8

// The kinds of desired rows; the numbers are part of the keys on disk.
const (
	ServiceRow  Kind = 1
	InstanceRow Kind = 2
	ContractRow Kind = 3
	ProfileRow  Kind = 4
)

var kindNames = [...]string{"", "service", "instance", "contract", "profile"}

// String is the kind's name in messages.
func (k Kind) String() string { return kindNames[k] }

// Row is one desired row to write, or to delete where Value is nil.
type Row struct {
	Kind Kind
	Name registry.Name // an instance's is its service; a profile's is its namespace and name
	UID  registry.UID  // of an instance
	// Value is a *registry.Service, *registry.Instance, *registry.Contract or
	// *registry.Profile, as Kind says.
	Value any
}

// String names the row for people.
func (r Row) String() string {
	if r.Kind == InstanceRow {
		return fmt.Sprintf("%s %s/%s", r.Kind, r.Name, r.UID)
	}
	return fmt.Sprintf("%s %s", r.Kind, r.Name)
}

// The prefixes of the keys: one byte, then parts. Numbers are big-endian, so
// that keys sort by them; names end with a NUL, which no name holds.
const (
	prefixAudit      = 'a' // seq
	prefixChange     = 'c' // epoch seq
	prefixDesired    = 'd' // kind namespace name [uid]
	prefixCheckpoint = 'k' // namespace service
	prefixLatest     = 'l' // namespace service
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

func rowKey(prefix byte, r Row) []byte {
	k := appendName([]byte{prefix, byte(r.Kind)}, r.Name)
	if r.Kind == InstanceRow {
		k = binary.BigEndian.AppendUint64(k, uint64(r.UID))
	}
	return k
}

// parseRowKey reads what rowKey wrote; Value stays nil.
func parseRowKey(k []byte) (Row, error) {
	if len(k) < 2 || k[1] < byte(ServiceRow) || k[1] > byte(ProfileRow) {
		return Row{}, fmt.Errorf("key %q is not that of a row", k)
	}
	r := Row{Kind: Kind(k[1])}
	n, rest, ok := cutName(k[2:])
	r.Name = n
	switch {
	case !ok:
		return r, fmt.Errorf("key %q holds no name", k)
	case r.Kind == InstanceRow && len(rest) == 8:
		r.UID = registry.UID(binary.BigEndian.Uint64(rest))
	case r.Kind == InstanceRow || len(rest) != 0:
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

// encode returns the value of the row under its desired key.
func (r Row) encode(key []byte) ([]byte, error) {
	ok := false
	switch v := r.Value.(type) {
	case *registry.Service:
		ok = r.Kind == ServiceRow && v.Name == r.Name
	case *registry.Instance:
		ok = r.Kind == InstanceRow && v.UID == r.UID && v.Service == r.Name
	case *registry.Contract:
		ok = r.Kind == ContractRow && v.Name == r.Name
	case *registry.Profile:
		ok = r.Kind == ProfileRow && v.Namespace == r.Name.Namespace && v.Name == r.Name.Service
	}
	if !ok {
		return nil, fmt.Errorf("%s: value %T does not belong under this key", r, r.Value)
	}
	return sealJSON(key, r.Value)
}

// decode fills Value from a stored one and checks that it names the same row.
func (r *Row) decode(key, value []byte) error {
	switch r.Kind {
	case ServiceRow:
		r.Value = new(registry.Service)
	case InstanceRow:
		r.Value = new(registry.Instance)
	case ContractRow:
		r.Value = new(registry.Contract)
	case ProfileRow:
		r.Value = new(registry.Profile)
	}
	if err := unsealJSON(key, value, r.Value); err != nil {
		return err
	}
	named := false
	switch v := r.Value.(type) {
	case *registry.Service:
		named = v.Name == r.Name
	case *registry.Instance:
		named = v.UID == r.UID && v.Service == r.Name
	case *registry.Contract:
		named = v.Name == r.Name
	case *registry.Profile:
		named = v.Namespace == r.Name.Namespace && v.Name == r.Name.Service
	}
	if !named {
		return errors.New("value names another row")
	}
	return nil
}
