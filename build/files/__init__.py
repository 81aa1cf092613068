"""Engine directories, their manifests, and the lock of a build."""
