// Package resolvev1 is the service that answers with one published view.
package resolvev1
