"""Take the picture of the service's page that the README shows: a model of the embedded characters, one photo asked.

python benchmarks/page_picture.py RUN results/page.png      # RUN: a finished run of the glyphs recipe
"""

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from fscil import data
from fscil.classifier import Classifier

COMMAND = [sys.executable, "-c", "from fscil.cli import main; main()"]
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    dataset = data.load("glyphs", None)

    def pictures(name: str, images: data.Images) -> np.ndarray:
        chosen = images.of_classes([dataset.class_names.index(name)])
        return chosen.batch(np.arange(6))[0]

    with tempfile.TemporaryDirectory() as folder:
        model = Classifier.from_run(given.run, quiet=True)
        for known in model.classes()[7:]:
            model.forget(known.name)
        asked = dataset.class_names[-1]
        model.enroll(asked, list(pictures(asked, dataset.train)[:3]))
        model.save(Path(folder) / "characters.fscil")
        photo = Path(folder) / "photo.png"
        Image.fromarray(pictures(asked, dataset.test)[4]).resize((256, 256), Image.Resampling.NEAREST).save(photo)
        server = subprocess.Popen(
            [*COMMAND, "serve", f"{folder}/characters.fscil", "--port", "0", "--no-token"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            address = next(found.group() for line in server.stdout if (found := re.search(r"http://[\d.:]+", line)))
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=OPTIONS)
                page = browser.new_page(viewport={"width": 1180, "height": 820})
                page.goto(address)
                page.set_input_files("#files", photo)
                page.wait_for_selector("#prediction .bars")
                page.wait_for_load_state("networkidle")
                page.screenshot(path=given.out)
                browser.close()
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()


if __name__ == "__main__":
    main()
