package registry

import "reflect"

// Equal reports whether two rows say the same, whoever wrote them when: the
// revision is not compared, and forms that are stored alike are equal.
func (s *Service) Equal(o *Service) bool {
	a, b := *s, *o
	normalizeService(&a)
	normalizeService(&b)
	a.Revision, b.Revision = 0, 0
	return reflect.DeepEqual(&a, &b)
}

// Equal reports whether two rows say the same; uid and revision, which the
// registry gives, are not compared.
func (i *Instance) Equal(o *Instance) bool {
	a, b := *i, *o
	normalizeInstance(&a)
	normalizeInstance(&b)
	a.UID, b.UID, a.Revision, b.Revision = 0, 0, 0, 0
	return reflect.DeepEqual(&a, &b)
}

// Equal reports whether two rows say the same; the revision is not compared.
func (c *Contract) Equal(o *Contract) bool {
	a, b := *c, *o
	normalizeContract(&a)
	normalizeContract(&b)
	a.Revision, b.Revision = 0, 0
	return reflect.DeepEqual(&a, &b)
}

// Equal reports whether two rows say the same; the revision is not compared.
func (p *Profile) Equal(o *Profile) bool {
	a, b := *p, *o
	a.Revision, b.Revision = 0, 0
	return a == b
}
