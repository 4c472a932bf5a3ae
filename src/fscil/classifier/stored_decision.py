"""What a stored classifier takes the scores for: thresholds, prior and decision rule, changed in its storage."""

from collections.abc import Callable
from dataclasses import replace

from fscil.classifier.calibration import require_same_rule
from fscil.classifier.decision import Decision, rule_from
from fscil.classifier.estimating import Estimate, estimate
from fscil.classifier.model_folder import Contents
from fscil.classifier.predictor import PathLike
from fscil.classifier.saving import restore_gallery
from fscil.classifier.storage.interface import Described
from fscil.classifier.synchronised import SynchronisedClassifier
from fscil.errors import ConfigError
from fscil.gallery import DecisionRule
from fscil.openset import Calibration


class StoredDecision(SynchronisedClassifier):
    """The part of a `StoredClassifier` that changes when a photo is unknown, and how probable that is."""

    def calibrate(
        self, folder: PathLike | None = None, false_accept: float = 0.05, score: str | None = None, quiet: bool = True
    ) -> Calibration:
        """As `Classifier.calibrate`; the threshold is stored when it returns.

        Parameters
        ----------
        folder, false_accept, score, quiet
            As for `Classifier.calibrate`.

        Returns
        -------
        Calibration

        Raises
        ------
        ConfigError, DataError
            As `Classifier.calibrate`.
        StoreError
            If the model cannot be written.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     found = stored.calibrate("photos/no_birds")
        >>> Classifier.load("birds.fscil").calibration == found
        True
        """
        with self._lock:
            self.refresh()
            made_for = self.classifier.gallery.rule
            found = self.classifier.find_threshold(folder, false_accept, score, quiet)

            def changed(decision: Decision, rule: DecisionRule) -> Decision:
                require_same_rule(made_for, rule)  # another process may have upgraded the model meanwhile
                return replace(decision, calibration=found)

            self._decide(changed)
        return found

    def uncalibrate(self) -> None:
        """Remove the threshold that `calibrate` has set: photos are unknown where that is more probable than 1/2.

        Under the cosine rule no photo is unknown then.

        Raises
        ------
        StoreError
            If the model cannot be written.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     found = stored.calibrate("photos/no_birds")
        ...     stored.uncalibrate()
        >>> Classifier.load("birds.fscil").calibration is None
        True
        """
        self._decide(lambda decision, _: replace(decision, calibration=None))

    def set_unknown_prior(self, unknown_prior: float) -> None:
        """Set how probable it is, before a photo is seen, that it shows none of the classes.

        Parameters
        ----------
        unknown_prior : float
            Between 0 and 1.

        Raises
        ------
        ConfigError
            If it is not, or the model has no probabilities.
        StoreError
            If the model cannot be written.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.set_unknown_prior(0.2)
        >>> Classifier.load("birds.fscil").decision.unknown_prior
        0.2
        """

        def changed(decision: Decision, rule: DecisionRule) -> Decision:
            if decision.probability is None:
                raise ConfigError(
                    f"{self.storage.place} has no probabilities, so no prior can change them. Run: fscil upgrade"
                )
            return replace(decision, unknown_prior=unknown_prior)

        self._decide(changed)

    def set_thresholds(self, known: float | None = None, unknown: float | None = None) -> None:
        """Set where known ends and where unknown begins, in probabilities.

        Parameters
        ----------
        known : float, optional
            The smallest probability of the nearest class at which it is known; below, the photo maybe shows it.
        unknown : float, optional
            The largest probability of "unknown" at which a photo is not called unknown. It replaces a threshold that
            `calibrate` has set.

        Raises
        ------
        ConfigError
            If one is no probability, or the model has no probabilities.
        StoreError
            If the model cannot be written.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.set_thresholds(known=0.8)
        >>> Classifier.load("birds.fscil").thresholds
        Thresholds(known=0.8, unknown=0.5)
        """
        self._decide(lambda decision, _: decision.with_thresholds(known, unknown))

    def upgrade(self, quiet: bool = True) -> Estimate:
        """As `Classifier.estimate`; the decision rule is stored when it returns.

        Parameters
        ----------
        quiet : bool
            Show no progress.

        Returns
        -------
        Estimate
            The decision rule and how it was found.

        Raises
        ------
        DataError
            If fewer than two classes have two photos or more.
        StoreError
            If the model cannot be written.

        Examples
        --------
        >>> with StoredClassifier.open("birds.fscil") as stored:
        ...     stored.upgrade().made["classes"]
        3
        """
        found: list[Estimate] = []

        def change(contents: Contents) -> Described:
            about = contents.about
            found.append(estimate(*restore_gallery(contents).features(), quiet))
            rule, decision = found[-1].rule, Decision.from_about(about)
            decision = replace(decision, calibration=None, probability=found[-1].probability)
            made = {**about["made"], "decision": found[-1].made}
            return Described({**about, **decision.to_about(rule), "made": made}, rule.state())

        self._describe(change)
        return found[-1]

    def _decide(self, change: Callable[[Decision, DecisionRule], Decision]) -> None:
        """Change what the scores of the rule are taken for."""

        def described(contents: Contents) -> Described:
            about = contents.about
            rule = rule_from(about, contents.decision)
            return Described({**about, **change(Decision.from_about(about), rule).to_about(rule)})

        self._describe(described)
