"""Drills on real servers under load: bad candidates are rolled out, and processes, networks and disks fail.

``make drills`` rolls candidates out, ``make drills-faults`` breaks one server, ``make drills-fleet`` servers
and front doors of a fleet. Clients know every right answer; a drill reports what they were answered and what
went wrong.
"""
