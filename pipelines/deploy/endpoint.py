"""Where one server listens and how patiently it ends, as options of Triton and of our own command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pipelines.deploy.ports import HOST, Ports

EXIT_TIMEOUT_S = (
    10  # Triton waits so long for requests in flight, then for its models, when it is told to end
)
_STUB_TIMEOUT_S = 120  # for a model's process to come up
_EVERY_ADDRESS = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Endpoint:
    """One server's place.

    Attributes:
        ports: Their numbers.
        address: Address that it listens on. Triton has no authentication: any but loopback needs a
            network around it that decides who may ask.
        exit_timeout_s: How long it waits for requests in flight when it is told to end.
    """

    ports: Ports
    address: str = HOST
    exit_timeout_s: int = EXIT_TIMEOUT_S

    def triton_options(self, rank: int = 0) -> list[str]:
        """Options of ``tritonserver`` that every server of ours gets.

        Args:
            rank: Of this process among those that MPI started; each needs shared memory of its own.
        """
        return [
            f"--http-address={self.address}",
            f"--http-port={self.ports.http}",
            f"--grpc-address={self.address}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-address={self.address}",
            f"--metrics-port={self.ports.metrics}",
            f"--exit-timeout-secs={self.exit_timeout_s}",
            "--disable-auto-complete-config",  # it starts every Python model twice
            f"--backend-config=python,shm-region-prefix-name={self.shared_memory_prefix}{rank}_",
            f"--backend-config=python,stub-timeout-seconds={_STUB_TIMEOUT_S}",
        ]

    @property
    def shared_memory_prefix(self) -> str:
        """What the names of all its regions in /dev/shm begin with."""
        return f"draftproof_{self.ports.http}_"

    def variables(self) -> dict[str, str]:
        """What models of the server need to call other models of it: the address of its gRPC port."""
        host = HOST if self.address in _EVERY_ADDRESS else self.address
        host = f"[{host}]" if ":" in host else host
        return {"DRAFTPROOF_GRPC_ADDRESS": f"{host}:{self.ports.grpc}"}

    def options(self) -> list[str]:
        """Options of ``python -m pipelines.deploy run`` and ``rank`` that mean this place."""
        numbers = [
            text for name, port in asdict(self.ports).items() for text in (f"--{name}-port", str(port))
        ]
        return [*numbers, "--address", self.address, "--exit-timeout-s", str(self.exit_timeout_s)]
