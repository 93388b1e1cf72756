package registry

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sightlinedev/sightline/identity"
)

// AllClasses is the set of every evidence class.
const AllClasses = ClassSet(1<<ClassProbe | 1<<ClassSelf | 1<<ClassCallers)

var classNames = [...]string{ClassProbe: "probe", ClassSelf: "self", ClassCallers: "callers"}

// String is the class's name on every surface.
func (c EvidenceClass) String() string { return classNames[c] }

// String lists the classes of the set: probe+self, or none.
func (s ClassSet) String() string {
	var names []string
	for c, name := range classNames {
		if s.Has(EvidenceClass(c)) {
			names = append(names, name)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, "+")
}

// Limits of contracts that are not in HEALTH.md §9; judgement.
const (
	maxDependencies = 32
	maxIdentities   = 64
	maxProbePath    = 1_024
)

// reportInterval is how often callers report (HEALTH.md §1); a removal on
// their word waits at most that long for the next report.
const reportInterval = 2 * time.Second

// WithDefaults returns the contract with every missing field set to its
// default (HEALTH.md §9). A probe timeout that is not given is 1 s, or half of
// an interval shorter than 2 s.
func (c Contract) WithDefaults() Contract {
	orElse(&c.Lease, 25*time.Second)
	orElse(&c.CallersHalfLife, 4*time.Second)
	orElse(&c.ProbeHalfLife, 8*time.Second)
	orElse(&c.CallersOut, 0.20)
	orElse(&c.CallersIn, 0.05)
	orElse(&c.ProbeOut, 0.40)
	orElse(&c.ProbeIn, 0.10)
	orElse(&c.Probe.Interval, 2*time.Second)
	orElse(&c.Probe.Timeout, min(time.Second, c.Probe.Interval/2))
	orElse(&c.ReturnHold, 15*time.Second)
	orElse(&c.GuardPercent, 50)
	if !c.NoRamp {
		orElse(&c.Ramp, 60*time.Second)
	}
	orElse(&c.Quarantine.Changes, 5)
	orElse(&c.Quarantine.Window, 10*time.Minute)
	orElse(&c.Quarantine.Hold, time.Minute)
	orElse(&c.Quarantine.MaxHold, 30*time.Minute)
	if len(c.Dependencies) > 0 {
		c.Dependencies = cloneList(c.Dependencies)
		for i := range c.Dependencies {
			orElse(&c.Dependencies[i].Weight, 50)
		}
	}
	return c
}

func orElse[T comparable](field *T, missing T) {
	var zero T
	if *field == zero {
		*field = missing
	}
}

// SlowestRemoval is how long after its first failure an instance can still be
// in: three failed probes and the decaying scores' way over their out-lines.
// The return hold has to be longer, or a half-broken instance would come back
// faster than it leaves. The contract must have its defaults.
func (c *Contract) SlowestRemoval() time.Duration {
	probe := max(3*c.Probe.Interval, crossing(c.ProbeHalfLife, c.ProbeOut)) + c.Probe.Timeout
	return max(probe, crossing(c.CallersHalfLife, c.CallersOut)+reportInterval)
}

// crossing is how long a score that was 0 takes to reach out when everything
// fails: 1 − 2^(−t/halfLife) = out.
func crossing(halfLife time.Duration, out float64) time.Duration {
	return time.Duration(float64(halfLife) * -math.Log2(1-out))
}

// CheckContract judges a contract by itself, missing fields as their defaults
// (HEALTH.md §9).
func CheckContract(row *Contract) Violations {
	v := CheckName(row.Name)
	v.source(row.Source)
	c := row.WithDefaults()
	numbers := v.contractNumbers(&c)
	v.probe(&c.Probe)
	if numbers && c.ReturnHold <= c.SlowestRemoval() {
		v.add("return_hold", "re-entry", "%s is not longer than the slowest removal of this contract, %s: re-entry must be strictly slower; raise it, or probe more often",
			c.ReturnHold, c.SlowestRemoval().Round(time.Millisecond))
	}
	v.dependencies(c.Dependencies)
	v.quarantine(&c.Quarantine)
	v.classes("require", c.Require)
	if c.Silence > SilenceIneligible {
		v.add("silence", "enum", "%d is not a silence policy", c.Silence)
	}
	if c.Locality > PreferZone {
		v.add("locality", "enum", "%d is not a locality mode", c.Locality)
	}
	if c.GRPC > FormFlat {
		v.add("grpc", "enum", "%d is not a gRPC form", c.GRPC)
	}
	v.identities(c.Identities)
	return v
}

// contractNumbers reports whether all of them are in range.
func (v *Violations) contractNumbers(c *Contract) bool {
	before := len(*v)
	v.duration("lease", c.Lease, MinLease, MaxLease)
	v.duration("callers_half_life", c.CallersHalfLife, time.Second, time.Minute)
	v.duration("probe_half_life", c.ProbeHalfLife, time.Second, time.Minute)
	v.lines("callers", c.CallersOut, c.CallersIn)
	v.lines("probe", c.ProbeOut, c.ProbeIn)
	v.duration("probe.interval", c.Probe.Interval, time.Second, time.Minute)
	if c.Probe.Timeout <= 0 || c.Probe.Timeout >= c.Probe.Interval {
		v.add("probe.timeout", "range", "%s is not above 0 and below the interval of %s", c.Probe.Timeout, c.Probe.Interval)
	}
	if c.ReturnHold < 10*time.Second {
		v.add("return_hold", "range", "%s is below 10s", c.ReturnHold)
	}
	if c.GuardPercent < 1 || c.GuardPercent > 100 {
		v.add("guard_percent", "range", "%d is outside 1..100", c.GuardPercent)
	}
	if c.NoRamp && c.Ramp != 0 {
		v.add("ramp", "range", "a ramp of %s and no ramp are both asked for; give one", c.Ramp)
	} else if !c.NoRamp {
		v.duration("ramp", c.Ramp, time.Minute, time.Hour)
	}
	return len(*v) == before
}

func (v *Violations) duration(field string, d, low, high time.Duration) {
	if d < low || d > high {
		v.add(field, "range", "%s is outside %s..%s", d, low, high)
	}
}

// lines judges a class's out-line and in-line. The comparisons are written so
// that a NaN fails them.
func (v *Violations) lines(class string, out, in float64) {
	if !(out >= 0.05 && out <= 0.95) {
		v.add(class+"_out", "range", "%v is outside 0.05..0.95", out)
		return
	}
	if !(in >= 0 && in <= out/2) {
		v.add(class+"_in", "range", "%v is not within 0 and half of %s_out (%v)", in, class, out/2)
	}
}

func (v *Violations) probe(p *Probe) {
	if p.Kind > ProbeHTTP {
		v.add("probe.kind", "enum", "%d is not a kind of probe", p.Kind)
	}
	if p.Port != "" {
		v.portName("probe.port", p.Port)
	}
	if p.Service != "" && (p.Kind != ProbeGRPC || !printable(p.Service) || len(p.Service) > MaxDNSName) {
		v.add("probe.service", "probe", "%q is for gRPC probes, printable and at most %d bytes", p.Service, MaxDNSName)
	}
	if p.Path == "" {
		return
	}
	if p.Kind != ProbeHTTP || !strings.HasPrefix(p.Path, "/") || len(p.Path) > maxProbePath ||
		!printable(p.Path) || strings.Contains(p.Path, " ") {
		v.add("probe.path", "probe", "%q is for HTTP probes, starts with a slash, has no spaces and at most %d bytes", p.Path, maxProbePath)
	}
}

func (v *Violations) dependencies(ds []Dependency) {
	if len(ds) > maxDependencies {
		v.add("dependencies", "count", "there are %d, the limit is %d", len(ds), maxDependencies)
		return
	}
	seen := make(map[string]bool, len(ds))
	for i, d := range ds {
		at := index("dependencies", i)
		if why := CheckDependencyName(d.Name); why != "" {
			v.add(at+".name", "dependency-name", "%s", why)
		}
		if seen[d.Name] {
			v.add(at+".name", "unique", "%q is declared twice", d.Name)
		}
		seen[d.Name] = true
		if d.Weight < 1 || d.Weight > 100 {
			v.add(at+".weight", "range", "%d percent is outside 1..100", d.Weight)
		}
		if d.Authority > Unreadiness {
			v.add(at+".authority", "enum", "%d is not a dependency authority", d.Authority)
		}
		if d.Authority == Unreadiness && d.Shared {
			v.add(at+".authority", "shared", "%s is shared: its failure would take every replica out at once; use weight reduction or informational", d.Name)
		}
	}
}

// CheckDependencyName says what keeps s from naming a dependency, in a contract
// or in an instance's word about itself. It returns "" for a good one.
func CheckDependencyName(s string) string {
	if s == "" || len(s) > MaxDNSName || !utf8.ValidString(s) || !printable(s) {
		return strconv.Quote(s[:min(len(s), MaxDNSName)]) + " is empty, longer than " + strconv.Itoa(MaxDNSName) + " bytes or not printable"
	}
	return ""
}

func (v *Violations) quarantine(q *Quarantine) {
	if q.Changes < 2 || q.Changes > 100 {
		v.add("quarantine.changes", "range", "%d is outside 2..100", q.Changes)
	}
	v.duration("quarantine.window", q.Window, time.Minute, time.Hour)
	v.duration("quarantine.hold", q.Hold, 10*time.Second, 30*time.Minute)
	v.duration("quarantine.max_hold", q.MaxHold, q.Hold, 24*time.Hour)
}

func (v *Violations) identities(ids []identity.ID) {
	if len(ids) > maxIdentities {
		v.add("identities", "count", "there are %d, the limit is %d", len(ids), maxIdentities)
	}
	seen := make(map[identity.ID]bool, len(ids))
	for i, id := range ids {
		if id.IsZero() {
			v.add(index("identities", i), "required", "it is empty; give a SPIFFE ID")
		}
		if seen[id] {
			v.add(index("identities", i), "unique", "%s is given twice", id)
		}
		seen[id] = true
	}
}

// checkContractFits judges a contract against a service that it governs.
func checkContractFits(c *Contract, svc *Service, p *Profile) Violations {
	var v Violations
	if missing := c.Require &^ p.Supplies; missing != 0 {
		v.add("require", "supplies", "contract %s requires the signal %s of service %s; profile %s does not supply it", c.Name, missing, svc.Name, profileWord(p))
	}
	if c.silenceIsForGood(p) {
		v.add("silence", "re-entry", "service %s supplies callers alone (profile %s), and nobody calls what is out: what silence: ineligible takes out could never come back; supply probe or self, or leave silence: unknown",
			svc.Name, profileWord(p))
	}
	if c.Probe.Port == "" {
		return v
	}
	for _, port := range svc.Ports {
		if port.Name == c.Probe.Port {
			return v
		}
	}
	v.add("probe.port", "exists", "service %s declares no port named %q", svc.Name, c.Probe.Port)
	return v
}

// silenceIsForGood reports whether the contract takes silent instances out though
// callers alone could bring them back, which call nobody that is out.
func (c *Contract) silenceIsForGood(p *Profile) bool {
	return c.Silence == SilenceIneligible && p.Supplies == ClassSet(0).With(ClassCallers)
}

func profileWord(p *Profile) string {
	if p.Name == "" {
		return "(none is given)"
	}
	return p.Namespace + "/" + p.Name
}
