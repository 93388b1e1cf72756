package registry

// Mode says whether a put may create, replace, or both.
type Mode uint8

// The modes of a put.
const (
	Upsert Mode = iota
	Create      // refused with AlreadyExists when the row is there
	Update      // refused with NotFound when it is not
)

// Mutation is one wanted change: one of the Put, Remove and Delete types of
// this package. The row's Source, or By, is the source that asks.
//
// rank is the place in the order in which a batch is planned: what others
// refer to is put before them and deleted after them.
type Mutation interface{ rank() int }

// PutService creates or replaces a service row.
type PutService struct {
	Row    Service // Revision is ignored
	Mode   Mode
	Expect uint64 // the revision that the caller saw; 0: whatever is held
}

// PutInstance creates an instance, or changes the one that it names: by
// Row.UID, or, when that is zero, by (service, label). An address or identity
// that differs from the held one makes a new instance under the same label.
type PutInstance struct {
	Row    Instance // Revision is ignored
	Mode   Mode
	Expect uint64 // the revision that the caller saw; 0: whatever is held
	// Register marks a registration by the instance itself: without a uid it is
	// always a new incarnation (a restart is a new instance), and it never
	// takes the label of another identity.
	Register bool
}

// RemoveInstance removes one instance, by UID, or by service and label when
// UID is zero. It may be planned and applied before anything is written.
type RemoveInstance struct {
	UID     UID
	Service Name
	Label   string
	By      string
	Removal Removal
}

// DeleteService removes a service with all its instances, whoever owns them.
// It may be planned and applied before anything is written.
type DeleteService struct {
	Name   Name
	By     string
	Expect uint64 // the revision that the caller saw; 0: whatever is held
}

// PutContract creates or replaces a contract row.
type PutContract struct {
	Row    Contract
	Mode   Mode
	Expect uint64 // the revision that the caller saw; 0: whatever is held
}

// DeleteContract removes a contract that no service names.
type DeleteContract struct {
	Name   Name
	By     string
	Expect uint64 // the revision that the caller saw; 0: whatever is held
}

// PutProfile creates or replaces a capability profile.
type PutProfile struct {
	Row    Profile
	Mode   Mode
	Expect uint64 // the revision that the caller saw; 0: whatever is held
}

// DeleteProfile removes a capability profile that nothing refers to.
type DeleteProfile struct {
	Name Name
	By   string
}

func (RemoveInstance) rank() int { return 0 }
func (DeleteService) rank() int  { return 1 }
func (PutProfile) rank() int     { return 2 }
func (PutContract) rank() int    { return 3 }
func (PutService) rank() int     { return 4 }
func (PutInstance) rank() int    { return 5 }
func (DeleteContract) rank() int { return 6 }
func (DeleteProfile) rank() int  { return 7 }

// Outcome says what one planned mutation does. The zero Outcome is a change
// that was not needed: the state already is as wanted.
type Outcome struct {
	Changed bool
	Created bool
	// UID of the instance that PutInstance created or changed, or that
	// RemoveInstance removed.
	UID UID
	// Replaced is the older incarnation under the same label, zero if none.
	Replaced UID
	// Taken are instances whose address the new one has proved; they leave.
	Taken    []UID
	Revision uint64 // of the row as it will be
}
