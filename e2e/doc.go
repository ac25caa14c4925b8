// Package e2e holds tests of the whole house: stories that begin with what a person does, in which processes are killed,
// stopped and cut off where it hurts most. Package house is what they stand in.
package e2e
