package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// State is the verdict on an instance.
type State uint8

// The four states (HEALTH.md §1). Serving is everything but Ineligible.
const (
	Unknown State = iota
	Eligible
	Degraded
	Ineligible
)

var stateNames = [...]string{"unknown", "eligible", "degraded", "ineligible"}

// String is the state's name on every surface.
func (s State) String() string { return stateNames[s] }

// Serving reports whether an instance in this state may be given traffic.
func (s State) Serving() bool { return s != Ineligible }

// Rule is the rule of HEALTH.md §4 that decided a verdict, or the admission
// rule of §5 for an instance that is not a member yet.
type Rule uint8

// The rules, in the order in which they are tried.
const (
	NoRule    Rule = iota
	R1             // authority, own deregistration, override, lapsed lease
	R2             // the instance's own word, or a dependency's
	R3             // refused connections, two witnesses
	R4             // callers primary and over the line
	R5             // probe over the line
	R6             // every supplied class silent
	R7             // otherwise
	Admission      // not admitted yet
)

var ruleNames = [...]string{"", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "admission"}

// String is the rule's name on every surface.
func (r Rule) String() string { return ruleNames[r] }

// Verdict is the whole decision on one instance, with the rule that fired and
// the numbers it saw.
type Verdict struct {
	UID      registry.UID
	State    State
	Member   bool   // admitted once, and wanted by its authority
	Draining bool   // leaves the views while others serve
	Weight   uint32 // base × ramp × degraded, at least 1
	Full     uint32 // what Weight would be without the ramp; 0: the base weight
	Ramping  bool   // below full weight because of a ramp
	RampHeld bool   // the ramp's next step waits for evidence
	// Ramp and Kept are the percents that a ramp has reached, and that
	// degradation leaves; 100 where there is none.
	Ramp, Kept uint32
	// Overridden: out by an operator's word; not counted in the guard's M.
	Overridden bool
	// Quarantined holds the member out beside its verdict; Flaps is how many
	// changes led there (the guard lifts the fewest first).
	// QuarantineEnds is when that ends; zero: it is not in quarantine.
	Quarantined    bool
	Flaps          int
	QuarantineEnds time.Time
	// Confirmed says that the guard must not undo this withdrawal: a lapsed
	// lease, callers, two classes, or a dead zone found it (HEALTH.md §8).
	Confirmed bool
	// DeadZone: its zone is dead by the word of all probers outside
	// (HEALTH.md §6), whatever the instance's own state.
	DeadZone bool
	// Waits says what holds a withdrawal back that a rule asks for.
	Waits  Wait
	Rule   Rule
	OutBy  Rule   // what took it out, NoRule while it is in
	Detail string // the numbers, for a person
	Since  time.Time
	// Classes that are supplied for the instance, and those of them that are fresh.
	Supplied, Fresh registry.ClassSet
	// Primary is the class that decides, at most one; empty: none speaks.
	Primary registry.ClassSet
}

// Wait is what holds a withdrawal back.
type Wait uint8

// What a withdrawal can wait for.
const (
	NoWait Wait = iota
	// WaitsBrake: the region's brake on withdrawals by observation (HEALTH.md §6).
	WaitsBrake
	// WaitsThird: callers' word alone already holds out what it may of the
	// service (HEALTH.md §2).
	WaitsThird
)

var waitNames = [...]string{"", "brake", "callers-third"}

// String is the wait's name on every surface; empty where nothing is held back.
func (w Wait) String() string { return waitNames[w] }
