"""Packaging, read from settings.ini so that every fact is stated once."""

from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
ini = ConfigParser(delimiters=["="])
ini.read(here / "settings.ini", encoding="utf-8")
cfg = ini["DEFAULT"]


def listed(*extras: str) -> list[str]:
    "Requirements of several extras, each once."
    found = [name for extra in extras for name in cfg[f"{extra}_requirements"].split()]
    return list(dict.fromkeys(found))


# the papers' numbers and claims, which lie beside the notebooks
BESIDE = {
    f"hypvl.resources.{name}": f"papers_repro/{name}" for name in ("reference", "claims", "audit")
}

setup(
    name=cfg["lib_name"],
    version=cfg["version"],
    description=cfg["description"],
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author=cfg["author"],
    author_email=cfg["author_email"],
    url=cfg["git_url"],
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=cfg["keywords"].split(),
    packages=[*find_packages(include=["hypvl", "hypvl.*"]), *BESIDE],
    package_dir=BESIDE,
    package_data={"hypvl": ["resources/*"], **dict.fromkeys(BESIDE, ["*.csv", "*.md"])},
    python_requires=">=" + cfg["min_python"],
    install_requires=cfg["requirements"].split(),
    extras_require={
        "train": listed("train"),
        "fast": listed("fast"),
        "search": listed("train", "search"),
        "explore": listed("train", "search", "explore"),
        "notebooks": listed("train", "search", "explore", "notebooks"),
        "dev": listed("train", "fast", "search", "explore", "notebooks", "dev"),
        "site": listed("site"),
    },
    entry_points={"console_scripts": cfg.get("console_scripts", "").split()},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
    zip_safe=False,
)
