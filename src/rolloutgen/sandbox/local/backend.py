"""The factory of local sandboxes. ``open`` is cheap; the first sandbox starts the helper process."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rolloutgen.errors import Finding, SandboxError
from rolloutgen.outcomes import Cause
from rolloutgen.sandbox.base import Network, SandboxSpec
from rolloutgen.sandbox.local import preflight
from rolloutgen.sandbox.local.ground import Ground
from rolloutgen.sandbox.local.sandbox import LocalSandbox
from rolloutgen.sandbox.local.zygotes import Zygote

ANY_IMAGE: Final = "*"


class LocalBackend:
    """Implements ``SandboxBackend`` with namespaces of this machine.

    ``images`` maps an image to its unpacked root folder, or to ``host``: the machine's own root, read-only below a
    private layer; ``*`` stands for every image and for tasks that name none, which otherwise get ``host``. ``hidden``
    are paths of this machine that no sandbox may see. ``egress`` is the most that any sandbox may reach.
    """

    def __init__(
        self,
        *,
        launch_id: str,
        images: Mapping[str, str],
        hidden: Sequence[Path],
        egress: Network,
        exec_output_max_mb: int = 16,
        start_timeout_sec: float = 60.0,
    ) -> None:
        self._launch_id = launch_id
        self._images = dict(images)
        self._hidden = tuple(sorted(_with_real_paths(hidden)))
        self._egress = egress
        self._output_limit = exec_output_max_mb << 20
        self._start_timeout_sec = start_timeout_sec
        self._sandboxes: set[LocalSandbox] = set()
        self._zygote: Zygote | None = None
        self._launching = asyncio.Lock()

    async def open(self) -> None:
        """Start the helper process. Raises SandboxError where the machine allows no namespaces."""
        await self._running_zygote()

    def create(self, spec: SandboxSpec) -> LocalSandbox:
        """Raises SandboxError for an image that LOCAL_IMAGES does not map."""
        image = self.folder_of(spec.image)
        if image is None:
            raise SandboxError(f"image {spec.image!r} is not in LOCAL_IMAGES", Cause.SANDBOX_START)
        reach = self._egress if spec.network is Network.OPEN else spec.network
        network = "open" if reach is Network.OPEN else "none"
        limits = (self._output_limit, self._start_timeout_sec)
        ground = Ground(self._launch_id, image, self._hidden, network, *limits)
        sandbox = LocalSandbox(spec, ground, self._running_zygote, lambda: self._sandboxes.discard(sandbox))
        self._sandboxes.add(sandbox)
        return sandbox

    async def check(self, images: Sequence[str | None]) -> Sequence[Finding]:
        findings = preflight.check_images(images, self.folder_of, ANY_IMAGE in self._images)
        findings += preflight.check_mapped(self._images.keys() - {ANY_IMAGE}, images)
        findings += preflight.check_egress(self._egress)
        usable = [image for image in dict.fromkeys(images) if self.folder_of(image)]
        was_open = self._zygote is not None and self._zygote.alive
        try:
            findings += await preflight.check_probe(self, usable[0] if usable else None, self._launch_id)
        finally:
            if not was_open:
                await self.close()
        return findings

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.stop() for sandbox in list(self._sandboxes)))
        if self._zygote is not None:
            zygote, self._zygote = self._zygote, None
            await zygote.close()

    def folder_of(self, image: str | None) -> str | None:
        """What serves for ``image``: a folder, ``host``, or None. A task that names no image asks for no other root."""
        unmapped = "host" if image is None else None
        return self._images.get(image or ANY_IMAGE) or self._images.get(ANY_IMAGE) or unmapped

    async def _running_zygote(self) -> Zygote:
        async with self._launching:
            if self._zygote is None or not self._zygote.alive:
                self._zygote = await Zygote.launch()
            return self._zygote


def _with_real_paths(paths: Sequence[Path]) -> set[str]:
    """Each path as it stands and as it resolves; never the root itself."""
    found = {str(form) for path in paths for form in (path.absolute(), path.resolve())}
    return found - {"/"}
