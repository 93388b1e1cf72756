package registry

import "fmt"

// RowKind says what a stored row holds. Values are stored: never renumber.
type RowKind uint8

// The kinds of row. PreviousContractRow keeps the good value that a contract
// had before its newest change (STORE.md §2). CountersRow is a single row.
const (
	ServiceRow          RowKind = 1
	InstanceRow         RowKind = 2
	ContractRow         RowKind = 3
	PreviousContractRow RowKind = 4
	ProfileRow          RowKind = 5
	CountersRow         RowKind = 6
)

var rowKindNames = [...]string{"", "service", "instance", "contract", "previous contract", "profile", "counters"}

// String is the kind's name in messages.
func (k RowKind) String() string { return rowKindNames[k] }

// RowKey identifies a stored row. An instance's key holds its service, so that
// a row that does not decode still says whose it is.
type RowKey struct {
	Kind RowKind
	Name Name // zero for CountersRow
	UID  UID  // InstanceRow only
}

// String names the row in messages.
func (k RowKey) String() string {
	switch k.Kind {
	case InstanceRow:
		return fmt.Sprintf("instance %s/%s", k.Name, k.UID)
	case CountersRow:
		return "counters"
	}
	return k.Kind.String() + " " + k.Name.String()
}

// Counters never go back while the store lives.
type Counters struct {
	LastUID      UID    // the newest uid given out
	LastRevision uint64 // the newest registry revision given out
}

// Row is one row to write or delete: exactly one of the values is set, by the
// key's kind, and none when Delete is.
type Row struct {
	Key      RowKey
	Delete   bool
	Service  *Service
	Instance *Instance
	Contract *Contract // ContractRow and PreviousContractRow
	Profile  *Profile
	Counters *Counters
}

// Damaged is a stored row that could not be used, and why.
type Damaged struct {
	Key    RowKey
	Detail string
}

func serviceKey(n Name) RowKey  { return RowKey{Kind: ServiceRow, Name: n} }
func contractKey(n Name) RowKey { return RowKey{Kind: ContractRow, Name: n} }
func profileKey(n Name) RowKey  { return RowKey{Kind: ProfileRow, Name: n} }
func instanceKey(i *Instance) RowKey {
	return RowKey{Kind: InstanceRow, Name: i.Service, UID: i.UID}
}
